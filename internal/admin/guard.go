package admin

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// apiPolicy is the policy of answers other than the page: whatever a browser
// makes of one, it loads nothing and cannot be framed.
const apiPolicy = "default-src 'none'; frame-ancestors 'none'"

// guard admits only requests that read, that somebody sends who may, that name
// this server, and that do not come from another site's page. A page that has
// given the port a name of its own has no token, so a token proves that the name
// is right. So does a certificate, which browsers show over TLS alone, to whoever
// has proved that the name is its own.
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
			fail(w, http.StatusMisdirectedRequest, "use an IP address, localhost or the name of a Service")
		case foreign(r):
			fail(w, http.StatusForbidden, "pages of other sites may not use this API")
		case who.Tenant != "" && !next.may(r):
			fail(w, http.StatusForbidden, "this is not for those who may read one tenant")
		default:
			next.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), readerKey{}, who)))
		}
	})
}

// ownHost reports whether Host can mean only this server. A foreign page can
// point a name of its own at this address and use that name (DNS rebinding). An
// address is safe, and so is localhost. Names that no public DNS has are
// accepted too where the port is open to a network; on loopback, where no
// Service leads, they are not, because anybody in the same LAN can define a
// name of one label.
func ownHost(r *http.Request) bool {
	name := r.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	switch {
	case name == "localhost", strings.HasSuffix(name, ".localhost"):
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

// foreign reports whether a browser sends the request for another site's page
// (Fetch Metadata). That page could not read the answer, but it could cause
// work. Following a link is fine.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") != "navigate"
	default:
		return false
	}
}
