package admin

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"konnectivity/tunnel"
)

// apiPolicy is the content security policy of all answers but the page: a browser loads
// nothing for them and cannot frame them.
const apiPolicy = "default-src 'none'; frame-ancestors 'none'"

// guard admits requests that only read, whose sender may read, that name this server,
// and that do not come from a page of another site. A page that points a name of its
// own at this port (DNS rebinding) has no token, so a token proves the name. So does a
// certificate, which a browser shows only over TLS to a server that has proved its name.
func guard(login Login, next *readers) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", apiPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		who, known := login(r)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "this API is read-only")
		case !known:
			askForToken(w)
			fail(w, http.StatusUnauthorized, "want a token, or over TLS a certificate, that this server knows")
		case !who.Proven && !ownHost(r):
			fail(w, http.StatusMisdirectedRequest, "use an IP address, localhost or, where the port listens beyond loopback, the name of a Service")
		case foreign(r):
			fail(w, http.StatusForbidden, "pages of other sites may not use this API")
		case who.Tenant != "" && !next.may(r):
			fail(w, http.StatusForbidden, "this is not for those who may read one tenant")
		default:
			next.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), readerKey{}, who)))
		}
	})
}

// ownHost reports whether Host can mean only this server, and not a name that another
// site controls. Addresses and localhost are accepted. Names that are not in public DNS
// are accepted where the port is open to a network. On loopback they are refused: no
// Service leads there, and any machine of the LAN can define a name of one label.
func ownHost(r *http.Request) bool {
	name := r.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	host := strings.Trim(name, "[]")
	name = tunnel.CanonicalHost(host)
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	switch {
	case tunnel.IsLocalhost(host):
		return true
	case onLoopback(r):
		return false
	default:
		return name != "" && !strings.Contains(name, ".") || strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".cluster.local")
	}
}

// onLoopback reports whether the request was sent to a loopback address.
func onLoopback(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// foreign reports whether a browser sends the request for a page of another site (Fetch
// Metadata). That page cannot read the answer, but could cause load. Links may be
// followed.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") != "navigate"
	default:
		return false
	}
}
