package chain

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"konnectivity/adapters/connect"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
)

// Proxy is an HTTP proxy. It is immutable.
type Proxy struct {
	Host    string // its name or address, without port and brackets
	Address string // host:port
	TLS     bool   // it is spoken to over TLS

	url  *url.URL
	auth string // value of Proxy-Authorization; a secret
}

// Parse reads a proxy's URL: http:// or https://, with user and password; one
// without a scheme is http. "" is no proxy: nil. Errors never hold text itself.
func Parse(text string) (*Proxy, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	bad := func(why string) (*Proxy, error) {
		return nil, fmt.Errorf("%s; want http://[user:password@]host[:port] or https://", why)
	}
	u, err := url.Parse(text)
	if err != nil {
		return bad("not a URL (is a character of the password not percent-encoded?)")
	}
	ports := map[string]string{"http": "80", "https": "443"}
	port, ok := ports[u.Scheme]
	if !ok {
		return bad("unknown scheme")
	}
	if p := u.Port(); p != "" {
		port = p
	}
	host := u.Hostname()
	address := host + ":" + port
	if strings.Contains(host, ":") {
		address = "[" + host + "]:" + port
	}
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return bad("no valid host and port in it")
	}
	p := &Proxy{Host: host, Address: address, TLS: u.Scheme == "https"}
	p.url = &url.URL{Scheme: u.Scheme, User: u.User, Host: address}
	if u.User != nil {
		password, _ := u.User.Password()
		p.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	return p, nil
}

// String is the proxy's URL without user and password.
func (p *Proxy) String() string {
	return (&url.URL{Scheme: p.url.Scheme, Host: p.url.Host}).String()
}

// URL is the proxy's URL with user and password, for http.Transport. It is a
// secret, and not to be changed.
func (p *Proxy) URL() *url.URL { return p.url }

// Way is how a Proxy is used.
type Way struct {
	Proxy *Proxy
	Who   string        // what clients are told it is: "customer proxy"
	Via   tunnel.Dialer // reaches the proxy
	TLS   *tls.Config   // for a Proxy with TLS: verifies Proxy.Host
}

// Dial implements tunnel.Dialer by CONNECT to the proxy. All of it together is
// bounded by ctx only.
func (w *Way) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	address := f.Address
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return nil, err
	}
	leg := f.To(w.Proxy.Address)
	c, err := w.Via.Dial(ctx, leg)
	f.Adopt(leg)
	if err != nil {
		return nil, w.failed(address, err)
	}
	if w.Proxy.TLS {
		secure := tls.Client(c, w.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = c.Reset(err)
			return nil, w.failed(address, err)
		}
		c = tunnel.Wrap(secure)
	}
	out, err := connect.Handshake(ctx, c, connect.Request{Address: address, ID: f.ID, Authorization: w.Proxy.auth})
	if err != nil {
		return nil, w.failed(address, err)
	}
	return out, nil
}

// failed makes an error for clients that says whose fault it is.
func (w *Way) failed(address string, err error) error {
	out := &tunnel.DialError{Address: address, Err: err}
	var status *connect.StatusError
	var dial *tunnel.DialError
	var files *tlsreload.NotReadyError
	var cert *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &status):
		out.Failure = connect.ProxyFailure(status)
		out.Reason = fmt.Sprintf("%s answered %d", w.Who, status.Status)
		if out.Failure == tunnel.FailAuth {
			out.Reason = w.Who + " wants authentication"
		}
		out.Err = fmt.Errorf("%s answered %d", w.Proxy, status.Status) // its page may hold anything
	case errors.As(err, &dial):
		out.Failure, out.Reason = dial.Failure, w.Who+": "+dial.Text()
	case errors.As(err, &files):
		out.Failure, out.Reason = tunnel.FailUnavailable, "the CAs to check the certificate of "+w.Who+" cannot be read"
	case errors.As(err, &cert):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" shows a certificate that is not trusted; add its CA"
	case errors.Is(err, connect.ErrMalformed):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" does not speak HTTP"
	case errors.As(err, &noTLS):
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" does not speak TLS; its URL may have to begin with http://"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), tunnel.CodeOf(err) == tunnel.CodePeerReset:
		out.Failure, out.Reason = tunnel.FailUnavailable, w.Who+" hung up"
	default:
		out.Failure = tunnel.FailureOf(err)
		if out.Failure == tunnel.FailInternal {
			out.Failure = tunnel.FailUnavailable
		}
		out.Reason = w.Who + ": " + out.Failure.String()
		if out.Failure == tunnel.FailTimeout {
			out.Reason = w.Who + " does not answer in time"
		}
	}
	return out
}
