package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/transport"

	"konnectivity/internal/version"
	"konnectivity/internal/wait"
)

const (
	// maxObject and maxPage bound an object and a page of them, in bytes. etcd takes 1.5 MiB.
	maxObject = 8 << 20
	maxPage   = pageSize * 2 << 20

	// leastObject is what each object of a page counts at least, in bytes: in memory, one with
	// nothing in it takes as much. No real one has less text.
	leastObject = 256

	// maxRefusal bounds the body of an error, in bytes; the rest is not read.
	maxRefusal = 64 << 10
)

// api is an API server. It may be used from any goroutine.
type api struct {
	http *http.Client
	base *url.URL
	pace *rate.Limiter // nil: none
}

// newAPI returns the API server of config, which it does not modify. It uses no network.
func newAPI(config *Config) (*api, error) {
	base, err := url.Parse(config.URL)
	if err == nil && base.Host == "" {
		err = errors.New("it has no host")
	}
	if err != nil {
		return nil, fmt.Errorf("the API server's address %q: %w", config.URL, err)
	}
	t := config.Transport
	t.UserAgent = userAgent()
	trip, err := transport.New(&t)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return &api{&http.Client{Transport: trip}, base, config.Pace}, nil
}

func userAgent() string { return filepath.Base(os.Args[0]) + "/" + version.Get().Version }

// request is a request in JSON.
type request struct {
	method, path string
	query        url.Values
	accept       string     // "": JSON
	body         any        // nil: none
	retries      int        // how often to ask again where the API says when
	time         *time.Time // if not nil, set to that of the answer
}

// send returns a successful answer, which the caller closes. A refusal is an Error.
func (a *api) send(ctx context.Context, r request) (*http.Response, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
	}
	at := a.base.JoinPath(r.path)
	at.RawQuery = r.query.Encode()
	for {
		if a.pace != nil {
			if err := a.pace.Wait(ctx); err != nil {
				return nil, err
			}
		}
		req, err := http.NewRequestWithContext(ctx, r.method, at.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := a.http.Do(req)
		if err == nil && r.time != nil {
			*r.time, _ = http.ParseTime(resp.Header.Get("Date"))
		}
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 && resp.StatusCode <= 206 {
			return resp, noPage(resp)
		}
		pause, again := retryAfter(resp)
		err = refusal(resp)
		if !again || r.retries == 0 {
			return nil, err
		}
		r.retries--
		if !wait.For(ctx, pause) {
			return nil, err
		}
	}
}

// noPage returns an error for a web page, and closes it.
func noPage(resp *http.Response) error {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		return nil
	}
	_ = resp.Body.Close()
	return fmt.Errorf("%s answered with a web page: it is not a Kubernetes API, or a proxy or a portal is in front of it", resp.Request.URL.Host)
}

// retryAfter is after which time the API wants to be asked again, if it does.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < 500 {
		return 0, false
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	return time.Duration(seconds) * time.Second, err == nil && seconds >= 0
}

// call sends a request and decodes the body into out; nil: the body is ignored. most bounds
// the body, in bytes.
func (a *api) call(ctx context.Context, r request, out any, most int) error {
	resp, err := a.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(&answer{resp.Body, most, most}).Decode(out); err != nil {
		return fmt.Errorf("the API's answer: %w", err)
	}
	drain(resp)
	return nil
}

// drain reads up to EOF behind an answer, so that the connection is used again.
func drain(resp *http.Response) { _, _ = io.CopyN(io.Discard, resp.Body, 1) }

// isOf is an error if an object is of another kind; "": it does not say.
func isOf(got, want string) error {
	if got != "" && got != want {
		return fmt.Errorf("the API sent another kind of object than was asked for: a %.100q, not a %s", got, want)
	}
	return nil
}

// NewSigningKeys returns a client for config, which it does not modify. It uses no network.
// The client returns, as a JSON Web Key Set, the public keys of service accounts' tokens, which
// the API publishes to users with the cluster role
// system:service-account-issuer-discovery. It blocks until the API has answered or ctx ends, and
// may be called from any goroutine.
func NewSigningKeys(config *Config) (func(context.Context) ([]byte, error), error) {
	a, err := newAPI(config)
	return func(ctx context.Context) ([]byte, error) {
		resp, err := a.send(ctx, request{method: http.MethodGet, path: "/openid/v1/jwks", accept: "application/jwk-set+json, */*"})
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		return io.ReadAll(&answer{resp.Body, maxObject, maxObject})
	}, err
}
