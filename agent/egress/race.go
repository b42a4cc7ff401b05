package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

// stagger is how long an address has before the next is tried beside it (RFC
// 8305 §5 recommends 250 ms).
const stagger = 250 * time.Millisecond

// attempt is how one address turned out.
type attempt struct {
	conn net.Conn
	err  error
}

// race tries addresses in order, each a stagger after the one before or as soon
// as one failed, and returns the first connection. It returns after every
// attempt has ended, so nothing is left behind.
func (d *Dialer) race(ctx context.Context, network, host string, addrs []netip.AddrPort) (tunnel.Conn, error) {
	if len(addrs) == 1 { // nothing to race with, so no goroutine and no timer
		conn, err := d.connect(ctx, network, host, addrs[0])
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(conn), nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt)
	running, next := 0, 0
	start := func() {
		to := addrs[next]
		running, next = running+1, next+1
		go func() {
			conn, err := d.connect(ctx, network, host, to)
			results <- attempt{conn, err}
		}()
	}
	timer := time.NewTimer(stagger)
	defer timer.Stop()

	var won net.Conn
	var failed error
	for start(); running > 0; {
		select {
		case <-timer.C:
		case a := <-results:
			running--
			won, failed = settle(won, failed, a)
			if won != nil || tunnel.FailureOf(failed) == tunnel.FailExhausted {
				cancel()
			}
		}
		if ctx.Err() == nil && next < len(addrs) {
			start()
			timer.Reset(stagger)
		}
	}
	if won == nil {
		return nil, failed
	}
	return tunnel.Wrap(won), nil
}

// settle keeps the first connection, and the error that tells most.
func settle(won net.Conn, failed error, a attempt) (net.Conn, error) {
	switch {
	case a.err == nil && won == nil:
		return a.conn, failed
	case a.err == nil:
		_ = a.conn.Close() // a photo finish
	case failed == nil || telling(a.err) < telling(failed):
		failed = a.err
	}
	return won, failed
}

// mostTelling lists failures from what says most about a destination with many
// addresses to what says least. Exhaustion comes first: it is ours, and the
// destination may be well.
var mostTelling = []tunnel.Failure{
	tunnel.FailExhausted, tunnel.FailRefused, tunnel.FailReset, tunnel.FailHostUnreach,
	tunnel.FailTimeout, tunnel.FailNetUnreach, tunnel.FailDenied,
}

func telling(err error) int {
	if i := slices.Index(mostTelling, tunnel.FailureOf(err)); i >= 0 {
		return i
	}
	return len(mostTelling)
}

// connect dials one address. The policy is asked again with what the kernel is
// about to be given, so no layer in between can swap the address.
func (d *Dialer) connect(ctx context.Context, network, host string, to netip.AddrPort) (net.Conn, error) {
	dialer := d.dialer
	dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		final, err := netip.ParseAddrPort(address)
		if err != nil {
			return &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "destination not allowed by policy", Err: err}
		}
		return d.opts.Policy.AllowResolved(named(host), final)
	}
	return dialer.DialContext(ctx, network, to.String())
}

// named is host unless it is an address, about which rules for names say nothing.
func named(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}
