package uplink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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
			addrs, _, err := d.addresses(ctx)
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
		_, fresh, _ := d.addresses(t.Context())
		testutil.Equal(t, fresh, true, "it is asked again")
	})
}

// A name may have more addresses than are linked, in another order each time.
func TestOfManyAddressesTheSameAreKept(t *testing.T) {
	find := func(d *directory) []netip.AddrPort { return testutil.Must(d.find(t.Context()))(t) }
	var gone netip.Addr
	open := func() *directory {
		return newDirectory(Options{Address: "konnectivity:8090", Lookup: func(context.Context, string) (all []netip.Addr, _ error) {
			for _, i := range rand.Perm(3 * maxAddresses) {
				if ip := netip.MustParseAddr(fmt.Sprint("192.0.2.", i)); ip != gone {
					all = append(all, ip)
				}
			}
			return all, nil
		}})
	}
	d := open()
	first := find(d)
	testutil.Equal(t, len(first), maxAddresses, "addresses")
	testutil.EqualSlices(t, find(d), first, "addresses of the next look-up")
	testutil.Holds(t, !slices.Equal(find(open()), first), "another process keeps the same addresses")
	gone = first[maxAddresses/2].Addr()
	rest := slices.DeleteFunc(find(d), func(a netip.AddrPort) bool { return !slices.Contains(first, a) })
	testutil.Equal(t, len(rest), maxAddresses-1, "addresses that stay when one of them is gone")
}

// Of the addresses of an IP version that this machine does not have, none takes a place.
func TestOfManyAddressesThoseInReachAreKept(t *testing.T) {
	for four, want := range map[int]int{2: 2, maxAddresses + 5: maxAddresses} {
		d := newDirectory(Options{Address: "konnectivity:8090", Lookup: func(context.Context, string) (all []netip.Addr, _ error) {
			for i := range 2 * maxAddresses {
				if all = append(all, netip.MustParseAddr(fmt.Sprint("2001:db8::", i+1))); i < four {
					all = append(all, netip.MustParseAddr(fmt.Sprint("192.0.2.", i+1)))
				}
			}
			return all, nil
		}})
		for name, c := range map[string]struct {
			routed      func(netip.Addr) bool
			most, least int // of IPv4
		}{
			"IPv4 only": {netip.Addr.Is4, want, want},
			"IPv6 only": {netip.Addr.Is6, 0, 0},
			"none":      {func(netip.Addr) bool { return false }, four, 0}, // yet
		} {
			d.routed = c.routed
			n := 0
			found := testutil.Must(d.find(t.Context()))(t)
			for _, a := range found {
				if a.Addr().Is4() {
					n++
				}
			}
			testutil.Between(t, n, c.least, c.most, "%d IPv4 addresses, %s: those that are kept", four, name)
			testutil.Holds(t, len(found) == maxAddresses || name == "IPv4 only" && len(found) == want, "%s: %d are kept", name, len(found))
		}
	}
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/sidecars.md"
	testutil.Says(t, page, "(of more than %v, to %v,", maxAddresses, maxAddresses)
	testutil.Says(t, "../../docs/operations.md", "each attempt that has no answer in %v s", int64(DefaultConnectTimeout/time.Second))
	testutil.Says(t, page, "then after pauses that grow to %v s", int64(maxPause/time.Second))
}
