package e2e

import (
	"net/http"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// No web page gets at anything on an admin port by a name of its own, nor from
// another site; who asks by address or localhost does.
func TestAdminPortsAnswerTheirOwnOnly(t *testing.T) {
	w := newSuite(t)
	srv := must(w.StartServer("--enable-profiling"))(t)
	agent := must(w.StartAgent(srv, "--enable-profiling"))(t)
	sidecar := testutil.ReservedAddress(t)
	must(w.StartSOCKS5(srv, "--admin-address="+sidecar))(t)
	ask := func(address, path, host, site string) int {
		req := must(http.NewRequest(http.MethodGet, "http://"+address+path, nil))(t)
		req.Host = host
		if site != "" {
			req.Header.Set("Sec-Fetch-Site", site)
		}
		res := must(http.DefaultTransport.RoundTrip(req))(t)
		_ = res.Body.Close()
		return res.StatusCode
	}
	const redirect = http.StatusMovedPermanently // to the health port
	for address, paths := range map[string]map[string]int{
		suite.Loopback(srv.AdminPort):   {"/": 200, "/api/v1/status": 200, "/metrics": 200, "/debug/pprof/": 200, "/debug/pprof/heap": 200, "/statusz": 404},
		suite.Loopback(agent.AdminPort): {"/": 200, "/api/v1/status": 200, "/metrics": redirect, "/debug/pprof/": 200, "/debug/pprof/cmdline": 200},
		sidecar:                         {"/": 200, "/api/v1/status": 200, "/nowhere": 404},
	} {
		for path, code := range paths {
			for _, c := range []struct {
				host, site string
				code       int
			}{
				{address, "", code}, {"localhost", "", code}, {"localhost", "same-origin", code},
				{"evil.example", "", 421}, {"konnectivity", "", 421}, {"localhost.evil.example", "", 421}, {"127.0.0.1.evil.example:80", "", 421},
				{address, "cross-site", 403}, {address, "same-site", 403},
			} {
				if got := ask(address, path, c.host, c.site); got != c.code {
					t.Errorf("%s%s asked as %s from %q: %d, want %d", address, path, c.host, c.site, got, c.code)
				}
			}
		}
	}
}
