package connect

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

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

// ParseProxy reads a proxy's URL: http:// or https://, with user and password; one
// without a scheme is http. "" is no proxy: nil. Errors never hold text itself.
func ParseProxy(text string) (*Proxy, error) {
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
	p, err := NewProxy(u)
	if err != nil {
		return bad(err.Error())
	}
	return p, nil
}

// NewProxy is the proxy of a URL as ParseProxy takes it. Errors never hold the
// URL.
func NewProxy(u *url.URL) (*Proxy, error) {
	ports := map[string]string{"http": "80", "https": "443"}
	port, ok := ports[u.Scheme]
	if !ok {
		return nil, errors.New("its scheme is neither http nor https")
	}
	if p := u.Port(); p != "" {
		port = p
	}
	host := u.Hostname()
	address := net.JoinHostPort(host, port)
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return nil, errors.New("no valid host and port in it")
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
