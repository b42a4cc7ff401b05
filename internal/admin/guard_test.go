package admin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"konnectivity/internal/testutil"
)

// request is one that came to a local address.
func request(url, local string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, url, nil)
	at, _ := net.ResolveTCPAddr("tcp", local)
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(at)))
}

func asked(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// On loopback, localhost is the only accepted name; elsewhere those of Services are too.
func TestHostOnLoopback(t *testing.T) {
	h := mounted(Source{Table: NewTable()})
	for host, everywhere := range map[string]bool{
		"127.0.0.1:8095": true, "[::1]:8095": true, "localhost:9": true, "LOCALHOST.": true, "x.localhost": true, "10.1.2.3:1": true,
		"[::1]": true, "server": false, "svc": false, "server.ns.svc:80": false, "server.ns.svc.cluster.local": false,
	} {
		for local, ok := range map[string]bool{"127.0.0.1:8095": everywhere, "[::1]:8095": everywhere, "10.1.2.3:8095": true} {
			r := request("/api/v1/status", local)
			r.Host = host
			w := asked(h, r)
			testutil.Equal(t, w.Code == http.StatusOK, ok, "%s asked as %s, answered by %d", local, host, w.Code)
		}
	}
	for _, host := range []string{
		"", "evil.example", "evil.example:8095", "rebind.test.", "localhost.evil.example", "127.0.0.1.evil.example", "a.svc.evil.example",
		"localhost..", "x.localhost..",
	} {
		for _, local := range []string{"127.0.0.1:1", "10.1.2.3:1"} {
			r := request("/", local)
			r.Host = host
			w := asked(h, r)
			testutil.Equal(t, w.Code, http.StatusMisdirectedRequest, "Host %q at %s", host, local)
		}
	}
}

// What a program serves beside page and API is guarded like them.
func TestGuardCoversAllHandlers(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(http.ResponseWriter, *http.Request) {})
	h := Handler(mux, Source{Table: NewTable()})
	for _, url := range []string{"/metrics", "/", "/api/v1/status", "/nowhere", "//metrics"} {
		for name, c := range map[string]struct {
			change func(*http.Request)
			code   int
		}{
			"another name": {func(r *http.Request) { r.Host = "evil.example" }, 421},
			"another site": {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
			"POST":         {func(r *http.Request) { r.Method = http.MethodPost }, 405},
			"PUT":          {func(r *http.Request) { r.Method = http.MethodPut }, 405},
			"DELETE":       {func(r *http.Request) { r.Method = http.MethodDelete }, 405},
			"OPTIONS":      {func(r *http.Request) { r.Method = http.MethodOptions }, 405},
		} {
			r := request(url, "127.0.0.1:1")
			r.Host = "localhost"
			c.change(r)
			w := asked(h, r)
			testutil.Equal(t, w.Code, c.code, "%s by %s", url, name)
		}
	}
}

// A page of another site cannot make this one work, nor read or frame it.
func TestCrossSiteRequests(t *testing.T) {
	h := mounted(Source{Table: NewTable()})
	for _, c := range []struct {
		site, mode string
		code       int
	}{
		{"cross-site", "cors", 403}, {"cross-site", "no-cors", 403}, {"same-site", "no-cors", 403}, {"cross-site", "", 403},
		{"cross-site", "navigate", 200}, {"same-origin", "cors", 200}, {"none", "navigate", 200}, {"", "", 200},
	} {
		for _, url := range []string{"/", "/page.js", "/api/v1/status"} {
			r := request(url, "127.0.0.1:1")
			r.Host = "localhost"
			r.Header.Set("Origin", "http://evil.example")
			r.Header.Set("Sec-Fetch-Site", c.site)
			r.Header.Set("Sec-Fetch-Mode", c.mode)
			w := asked(h, r)
			testutil.Equal(t, w.Code, c.code, "%s from %q by %q", url, c.site, c.mode)
			header := w.Header()
			testutil.Holds(t, header.Get("Access-Control-Allow-Origin") == "" && header.Get("Content-Security-Policy") != "", "%s: %v", url, header)
			for name, want := range map[string]string{
				"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
				"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			} {
				testutil.Equal(t, header.Get(name), want, "%s of %s", name, url)
			}
		}
	}
}
