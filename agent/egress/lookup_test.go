package egress

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

type resolverFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	return f(ctx, network, host)
}

// DNS that does not answer is told from a destination that does not, before the
// dial's time is up.
func TestDNSIsBlamedForItself(t *testing.T) {
	for name, c := range map[string]struct {
		resolver resolverFunc
		failure  tunnel.Failure
		text     string
		took     time.Duration
	}{
		"silent": {func(ctx context.Context, _, _ string) ([]netip.Addr, error) { <-ctx.Done(); return nil, ctx.Err() },
			tunnel.FailResolve, "name lookup failed: the agent's DNS does not answer", 7 * time.Second},
		"time-out": {func(context.Context, string, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "i/o timeout", IsTimeout: true}
		}, tunnel.FailResolve, "name lookup failed: the agent's DNS does not answer", 0},
		"broken": {func(context.Context, string, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "server misbehaving", IsTemporary: true}
		}, tunnel.FailResolve, "name lookup failed: the agent's DNS could not answer", 0},
		"no such": {func(context.Context, string, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}, tunnel.FailNoSuchHost, "no such host", 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			d := New(Options{resolver: c.resolver})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			start := time.Now()
			_, err := d.Dial(ctx, tunnel.NewFlow("tcp", "db.test:5432"))
			typed := tunnel.AsDialError("", err)
			if took := time.Since(start); typed.Failure != c.failure || typed.Text() != c.text || took != c.took {
				t.Errorf("%v %q after %v", typed.Failure, typed.Text(), took)
			}
		})
	}
}
