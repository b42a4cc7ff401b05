package status

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
	"konnectivity/internal/files"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
)

const (
	// adminTime bounds a request; a healthy process answers in milliseconds.
	adminTime = 10 * time.Second

	// maxTokenFile bounds the file of a token, in bytes.
	maxTokenFile = 64 << 10

	// maxAnswer bounds an answer of the API, in bytes, and maxRefusal one that is an error.
	maxAnswer  = 8 << 20
	maxRefusal = 4 << 10
)

// Report is the state of one process.
type Report struct {
	Address     string             `json:"address"`
	Error       string             `json:"error,omitempty"`    // why there is no report
	Troubles    []string           `json:"troubles,omitempty"` // problems to look at first, as sentences
	Status      admin.Status       `json:"status"`
	Peers       []admin.Peer       `json:"peers"`
	Connections []admin.Connection `json:"connections"`
	Matched     int                `json:"connectionsMatched"`
	Failures    []admin.Failure    `json:"failures"`

	refused bool           // nothing listens at Address
	back    bool           // the last lost peer is connected again
	tenants []admin.Tenant // for a Set; nil: it has none
}

// reports are a picture of several processes, each by itself.
type reports []Report

// Secure is the prefix of an admin API's address over TLS.
const Secure = "https://"

// Login is what a Client shows to admin APIs. The zero value shows nothing.
type Login struct {
	Token   string // file of the token; "" for none
	via.TLS        // for APIs over TLS
}

// Client asks admin APIs. An address is HOST:PORT, with Secure before it for TLS.
type Client struct {
	http    *http.Client
	token   string // "": none
	trusted string // what verifies APIs over TLS

	names sync.Map // host by the address that it was looked up to, for certificates
}

// NewClient returns a Client that shows l to every API; Close ends it. It fails if a
// file of l cannot be used.
func NewClient(l Login) (*Client, error) {
	c := &Client{trusted: l.Files.Trusted("--ca-cert-path"), http: &http.Client{
		Timeout: adminTime,
		// No admin API redirects, and the token must not reach another program.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if err := c.presentToken(l.Token); err != nil {
		return nil, err
	}
	source, err := tlsreload.New(l.Files, tlsreload.Options{Name: "admin", Peer: pki.RoleRule{Want: pki.RoleServer}.Check})
	if err != nil {
		return nil, err
	}
	// This transport never uses the proxy of the environment.
	c.http.Transport = &http.Transport{DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		// The transport finishes a dial whose request has been given up.
		ctx, cancel := context.WithTimeout(ctx, c.http.Timeout)
		defer cancel()
		if name, ok := c.names.Load(address); ok {
			host = name.(string)
		}
		dialer := tls.Dialer{Config: source.Client(cmp.Or(l.ServerName, host), "http/1.1")}
		return dialer.DialContext(ctx, network, address)
	}}
	return c, nil
}

func (c *Client) presentToken(file string) error {
	if file == "" {
		return nil
	}
	text, err := readToken(file)
	if err == nil {
		_, err = admin.ParseToken(text)
	}
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	c.token = strings.TrimSpace(string(text))
	return nil
}

// readToken reads a file, which may be a pipe such as <(command) in a shell.
func readToken(path string) ([]byte, error) {
	file, err := os.OpenFile(path, files.Mode, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	_ = file.SetReadDeadline(time.Now().Add(adminTime)) // regular files need none
	return io.ReadAll(io.LimitReader(file, maxTokenFile))
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) reports(ctx context.Context, addresses []string, filter string, limit int) reports {
	return c.each(addresses, func(r *Report) error { return c.Report(ctx, r, filter, limit) })
}

// each asks all addresses at once, so that one that hangs does not delay the others.
func (c *Client) each(addresses []string, ask func(*Report) error) reports {
	out := make(reports, len(addresses))
	var asking sync.WaitGroup
	for i, a := range addresses {
		asking.Go(func() {
			out[i] = Report{Address: a}
			if err := ask(&out[i]); err != nil {
				out[i] = Report{Address: a, Error: cli.Printable(err.Error()), refused: errors.Is(err, errRefused)}
			}
		})
	}
	asking.Wait()
	return out
}

// Report fills in r, whose Address it asks.
func (c *Client) Report(ctx context.Context, r *Report, filter string, limit int) (err error) {
	q := url.Values{"filter": {filter}, "limit": {strconv.Itoa(limit)}}
	if err := c.get(ctx, r.Address, "status", nil, &r.Status); err != nil {
		return err
	}
	if v := r.Status.APIVersion; v != admin.Version {
		return fmt.Errorf("%s: its apiVersion is %.20q, want %q", errForeign, v, admin.Version)
	}
	var peers admin.Page[admin.Peer]
	var conns admin.Page[admin.Connection]
	var failures admin.Page[admin.Failure]
	q.Set("sort", "-rate")
	if err := c.get(ctx, r.Address, "peers", q, &peers); err != nil {
		return err
	}
	q.Set("sort", "-state")
	if err := c.get(ctx, r.Address, "connections", q, &conns); err != nil {
		return err
	}
	q.Set("limit", strconv.Itoa(max(limit, admin.KeptFailures))) // to sum up all, even if fewer are shown
	if err := c.get(ctx, r.Address, "failures", q, &failures); err != nil {
		return err
	}
	r.Peers, r.Connections, r.Matched, r.Failures = peers.Items, conns.Items, conns.Matched, failures.Items
	if lost, ok := lostPeer(*r); ok {
		role, id, _ := strings.Cut(lost.Destination, " ")
		r.back = c.peer(ctx, r.Address, lost.Tenant, role, id) != nil
	}
	seen := *r
	if seen.Peers, err = c.withSilent(ctx, r.Address, filter, peers); err != nil {
		return err
	}
	r.Troubles = troubles(seen)
	r.Failures = r.Failures[:min(limit, len(r.Failures))]
	return nil
}

// withSilent returns the peers of page, and more if page has no room for all silent ones,
// which are listed first.
func (c *Client) withSilent(ctx context.Context, address, filter string, page admin.Page[admin.Peer]) ([]admin.Peer, error) {
	n := len(page.Items)
	if n == page.Matched || n > 0 && page.Items[n-1].Silent == 0 {
		return page.Items, nil
	}
	var all admin.Page[admin.Peer]
	q := url.Values{"filter": {filter}, "sort": {"-rate"}, "limit": {strconv.Itoa(pageSize)}}
	err := c.get(ctx, address, "peers", q, &all)
	return all.Items, err
}

// errRefused is the error for an address where nothing listens.
var errRefused = fmt.Errorf("no answer from the admin API: %s", tunnel.FailRefused)

// get reads one resource. Its error is a sentence without the address.
func (c *Client) get(ctx context.Context, address, name string, q url.Values, to any) error {
	address, secure := strings.CutPrefix(address, Secure)
	if strings.HasPrefix(address, ":") { // as in flags, such as --admin-address
		address = "localhost" + address
	}
	u := url.URL{Scheme: "http", Host: address, Path: "/api/" + admin.Version + "/" + name, RawQuery: q.Encode()}
	if secure {
		u.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		switch failure := tunnel.FailureOf(err); failure {
		case tunnel.FailRefused:
			return errRefused
		case tunnel.FailInternal, tunnel.FailReset:
		default:
			return fmt.Errorf("no answer from the admin API: %s", failure)
		}
		if secure {
			return fmt.Errorf("no answer from the admin API over TLS: %s", c.tlsFailure(err))
		}
		return fmt.Errorf("%s answers there, which is no admin API", via.Identify(ctx, address).Who)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusal(res, name, secure)
	}
	if err := decode(res.Body, to); err != nil {
		return err
	}
	cli.MakePrintable(to) // peers choose their names
	return nil
}

// errForeign begins the error about an answer that no admin API gives.
const errForeign = "the answer is not the admin API's"

// decode reads a resource.
func decode(from io.Reader, to any) error {
	body := &io.LimitedReader{R: from, N: maxAnswer}
	err := json.NewDecoder(body).Decode(to)
	switch failure := tunnel.FailureOf(err); {
	case err == nil:
		return nil
	case body.N == 0:
		return fmt.Errorf("%s: it has more than %d MiB", errForeign, maxAnswer>>20)
	case failure == tunnel.FailTimeout, failure == tunnel.FailCancelled:
		return fmt.Errorf("the admin API began to answer, and did not end: %s", failure)
	default:
		return fmt.Errorf("%s: %w", errForeign, err)
	}
}

// refusal says what to do about an answer that is not the resource of that name.
func refusal(res *http.Response, name string, secure bool) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	var said struct{ Error string } // as an admin API puts it
	_ = json.Unmarshal(body, &said)
	switch code := res.StatusCode; {
	case code == http.StatusNotFound && said.Error != "" && name == "tenants":
		return errors.New("it has no tenants: give the admin port of a server with --tenants-dir or --tenants-namespace")
	case code == http.StatusNotFound:
		return errors.New("it has no admin API: it is another program, an older version, or another of its ports")
	case code >= 300 && code < 400:
		return fmt.Errorf("it answers with a redirect (%d), which no admin API does, and none is followed", code)
	case code == http.StatusUnauthorized:
		return errors.New("it wants a token or, over TLS, a certificate that it knows: give --token-file, or --tls-cert-path and --tls-key-path")
	case !secure && bytes.Contains(body, []byte("HTTP request to an HTTPS server")): // in net/http's words
		return errors.New("it speaks TLS: ask " + Secure + res.Request.URL.Host + ", if that is the admin port")
	case code == http.StatusBadRequest && said.Error == "":
		return fmt.Errorf("it answers %s, which is no admin API's: it is another program, or another port", res.Status)
	default:
		return fmt.Errorf("the admin API answers %s: %s", res.Status, said.Error)
	}
}

// tlsFailure describes the error of a TLS connection, without the address.
func (c *Client) tlsFailure(err error) string {
	if errors.Is(err, http.ErrSchemeMismatch) {
		return "it speaks none: leave out " + Secure
	}
	if words := tlsreload.Untrusted(err, c.trusted); words != "" {
		return words
	}
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err
	}
	return err.Error()
}

// find returns the item of a list that is the wanted one; nil if there is none.
func find[T any](ctx context.Context, c *Client, address, list string, q url.Values, wanted func(T) bool) (*T, error) {
	var page admin.Page[T]
	err := c.get(ctx, address, list, q, &page)
	if i := slices.IndexFunc(page.Items, wanted); i >= 0 {
		return &page.Items[i], err
	}
	return nil, err
}

// Connection finds one by its id; nil if it is not open there.
func (c *Client) Connection(ctx context.Context, address, id string) (*admin.Connection, error) {
	return find(ctx, c, address, "connections", url.Values{"filter": {id}}, func(v admin.Connection) bool { return v.ID == id })
}

// FailedBy returns the next hop of a failed dial; "" if it is unknown.
func (c *Client) FailedBy(ctx context.Context, address, id string) string {
	f, _ := find(ctx, c, address, "failures", url.Values{"filter": {id}}, func(admin.Failure) bool { return true })
	if f == nil {
		return ""
	}
	return f.Next
}

// Agent finds the agent of a tenant by its id; nil if it is not connected there.
func (c *Client) Agent(ctx context.Context, address, tenant, id string) *admin.Peer {
	return c.peer(ctx, address, tenant, admin.RoleAgent, id)
}

// peer finds a connected peer; nil if there is none, or the API does not answer.
func (c *Client) peer(ctx context.Context, address, tenant, role, id string) *admin.Peer {
	q := url.Values{"role": {role}, "tenant": {tenant}, "filter": {id}, "limit": {strconv.Itoa(pageSize)}}
	p, _ := find(ctx, c, address, "peers", q, func(p admin.Peer) bool { return p.Tenant == tenant && p.Role == role && p.ID == id })
	return p
}
