package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// apiPolicy is for answers that are no page: whatever a browser makes of one,
// it loads nothing and is framed by nobody.
const apiPolicy = "default-src 'none'; frame-ancestors 'none'"

// guard lets only reading in, only by who means this server, and not from the
// page of another.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", apiPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "this API is read-only")
		case !ownHost(r):
			fail(w, http.StatusMisdirectedRequest, "use an IP address, localhost or the name of a Service")
		case foreign(r):
			fail(w, http.StatusForbidden, "pages of other sites may not use this API")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownHost says whether the Host is one by which nobody else can be meant: a
// foreign page can point a name of its own at this address and then ask by that
// name (DNS rebinding). An address is safe, and so is localhost. Names that no
// public DNS has are accepted too where the port is open to a network; on
// loopback, where no Service leads, they are not: a name of one label is what
// whoever is in the same LAN says it is.
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

// onLoopback says whether the request came to a loopback address.
func onLoopback(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// foreign says whether a browser asks for another site's page, which could not
// read the answer but make it work (Fetch Metadata). Following a link is fine.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") != "navigate"
	default:
		return false
	}
}
