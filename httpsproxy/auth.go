package httpsproxy

import (
	"crypto/sha256"
	"net/http"

	"konnectivity/tunnel"
)

var unauthenticated = &refusal{http.StatusProxyAuthRequired, "This proxy requires a user and a password.", tunnel.FailAuth.Label()}

// admits reports whether r has valid credentials (RFC 9110 §11.7). They are not
// passed on: Proxy-Authorization is for this hop.
func (s *Server) admits(c *client, r *http.Request) bool {
	if s.opts.Credentials == nil {
		return true
	}
	user, password, ok := proxyAuth(r.Header)
	if !ok {
		return false
	}
	given := sha256.Sum256([]byte(r.Header["Proxy-Authorization"][0]))
	if given == c.proven {
		return true // once for each connection, as for SOCKS5
	}
	if !s.opts.Credentials.Check(r.Context(), c.RemoteAddr(), user, password) {
		return false
	}
	c.proven = given
	return true
}

// proxyAuth reads Basic credentials, with net/http's own parser.
func proxyAuth(h http.Header) (user, password string, ok bool) {
	given := h["Proxy-Authorization"]
	if len(given) != 1 {
		return "", "", false
	}
	basic := http.Request{Header: http.Header{"Authorization": given}}
	return basic.BasicAuth()
}

// challenge answers a request without valid credentials and ends its
// connection, so that each guess costs a connection.
func (s *Server) challenge(c *client, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Proxy-Authenticate", `Basic realm="konnectivity", charset="UTF-8"`)
	s.turnAway(c, w, r, unauthenticated)
}
