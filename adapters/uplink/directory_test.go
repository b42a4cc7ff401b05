package uplink

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// A DNS that has fallen silent leaves a request the time to reach the server by the
// addresses that are known, and holds up the next one even less.
func TestSilentDNSLeavesTimeToConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := false
		d := &directory{host: "konnectivity", port: 8090, lookup: func(ctx context.Context, _ string) ([]netip.Addr, error) {
			if silent {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
		}}
		ask := func() time.Duration {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), DefaultConnectTimeout)
			defer cancel()
			start := time.Now()
			addrs, _, err := d.addresses(ctx, false)
			testutil.Succeeds(t, err, "the addresses")
			testutil.Equal(t, len(addrs), 1, "addresses: %v", addrs)
			return time.Since(start)
		}
		ask()
		silent = true
		time.Sleep(refreshEvery)
		testutil.AtMost(t, ask(), DefaultConnectTimeout/2, "time that is gone")
		testutil.Equal(t, ask(), 0, "time that the next request waited")
		silent = false
		time.Sleep(refreshEvery)
		_, fresh, _ := d.addresses(t.Context(), false)
		testutil.Equal(t, fresh, true, "it is asked again")
	})
}

// The first of the pod's name servers may be dead: the resolver waits 5 s for it.
func TestLooksUpBehindADeadNameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &directory{host: "konnectivity", port: 8090, lookup: func(ctx context.Context, _ string) ([]netip.Addr, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(10*time.Second + time.Millisecond):
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
			}
		}}
		testutil.Equal(t, len(testutil.Must(d.resolve(t.Context()))(t)), 1, "addresses")
	})
}
