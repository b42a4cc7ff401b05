package resolve

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// knowing is a Guest that knows www.example, and that gone.example is not.
func knowing(t testing.TB) *Guest {
	g := NewGuest(GuestOptions{})
	t.Cleanup(g.Close)
	for _, f := range []*Flight[Answer]{
		{Key: "www.example", value: Answer{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Source: FromGuest}},
		{Key: "gone.example", err: NotFound("gone.example")},
	} {
		f.done = make(chan struct{})
		close(f.done)
		g.flights.kept.Put(f.Key, f, time.Hour)
	}
	return g
}

func BenchmarkKnown(b *testing.B) {
	g := knowing(b)
	for _, name := range []string{"www.example", "WWW.example", "gone.example"} {
		b.Run("name="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = g.Resolve(context.Background(), name)
			}
		})
	}
}

// Nearly every dial of a sidecar is for a name that it knows.
func TestKnownNamesAllocateNothing(t *testing.T) {
	g := knowing(t)
	for _, name := range []string{"www.example", "gone.example"} {
		testutil.MaxAllocs(t, 0, func() { _, _ = g.Resolve(t.Context(), name) })
	}
}
