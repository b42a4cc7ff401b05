package agent

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http/httpproxy"

	"konnectivity/internal/testutil"
)

// NO_PROXY holds for a server however its name is written.
func TestServersOfNoProxy(t *testing.T) {
	config := httpproxy.Config{HTTPSProxy: "http://proxy.example:3128", NoProxy: ".direct.example,a.example:8091,192.0.2.0/24,[2001:db8::7]:8091"}
	r := &resolver{proxy: config.ProxyFunc(), lookup: func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
	}}
	for server, direct := range map[string]bool{
		"x.direct.example:8091": true, "x.direct.example.:8091": true, "a.example.:8091": true, "192.0.2.9:8091": true, "[2001:db8::7]:8091": true,
		"a.example.:8092": false, "other.example.:8091": false, "[2001:db8::8]:8091": false,
	} {
		found, err := r.resolveOne(t.Context(), server)
		testutil.Holds(t, err == nil && len(found) == 1 && (found[0].proxy == nil) == direct,
			"%s: %v, %v; direct should be %v", server, found, err, direct)
	}
}

// A name whose DNS does not answer, as of a region that is down, keeps no other from
// being looked up.
func TestSlowNameDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &resolver{servers: []string{"down.example:8091", "up.example:8091"}, lookup: func(ctx context.Context, _, host string) ([]netip.Addr, error) {
			if host == "down.example" {
				<-ctx.Done()
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ctx.Err()
		}}
		ctx := testutil.ContextFor(t, time.Second)
		found, err := r.resolve(ctx)
		testutil.Holds(t, len(found) == 1 && found[0].host == "up.example" && err != nil, "%v, %v", found, err)
	})
}
