package uplink

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
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
			if addrs, _, err := d.addresses(ctx, false); err != nil || len(addrs) != 1 {
				t.Errorf("%v, %v", addrs, err)
			}
			return time.Since(start)
		}
		ask()
		silent = true
		time.Sleep(refreshEvery)
		if took := ask(); took > DefaultConnectTimeout/2 {
			t.Errorf("%v of %v are gone", took, DefaultConnectTimeout)
		}
		if took := ask(); took > 0 {
			t.Errorf("the next request waited %v", took)
		}
		silent = false
		time.Sleep(refreshEvery)
		if _, fresh, _ := d.addresses(t.Context(), false); !fresh {
			t.Error("it is not asked again")
		}
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
		if addrs, err := d.resolve(t.Context()); err != nil || len(addrs) != 1 {
			t.Errorf("%v, %v", addrs, err)
		}
	})
}
