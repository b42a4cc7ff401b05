package nameserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// The last of the servers is asked, and has as long as each before, within the 5 s that
// a sidecar has for a look-up.
func TestTheLastServerIsAsked(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 15 * time.Second, 1: 15 * time.Second, 2: 2500 * time.Millisecond, 3: roundTime / 3, 9: roundTime / 3} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			ask := patience(func(ctx context.Context, _, _ string) (net.Conn, error) {
				time.Sleep(handshakeTime / 2)
				return near, ctx.Err()
			}, func() []netip.Addr { return make([]netip.Addr, n) })
			began := time.Now()
			conn := testutil.Must(ask(t.Context(), "tcp", "dead:53"))(t)
			_ = conn.SetDeadline(began.Add(15 * time.Second)) // as the resolver does
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != want {
				t.Errorf("%d servers: after %v: %v; want %v", n, time.Since(began), err, want)
			}
		})
	}
}

// A server that leaves a handshake unanswered has no longer than that, even if it is the only one.
func TestAHandshakeHasAnEnd(t *testing.T) {
	for n := range 3 {
		synctest.Test(t, func(t *testing.T) {
			ask := patience(func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, func() []netip.Addr { return make([]netip.Addr, n) })
			began := time.Now()
			_, err := ask(t.Context(), "tcp", "dead:53")
			testutil.Holds(t, err != nil && time.Since(began) == handshakeTime, "of %d: %v after %v", n, err, time.Since(began))
		})
	}
}

// A question goes to a server that resolv.conf names now, whatever the resolver has read before.
func TestANewFileIsHeeded(t *testing.T) {
	for _, c := range []struct{ file, server, want string }{
		{"192.0.2.1 192.0.2.2", "192.0.2.2:53", "192.0.2.2:53"},
		{"192.0.2.1 192.0.2.2", "192.0.2.9:53", "192.0.2.1:53 192.0.2.2:53"},
		{"fe80::1%eth0", "[fe80::1%eth0]:53", "[fe80::1%eth0]:53"},
		{"fe80::1%eth0", "192.0.2.9:53", "[fe80::1%eth0]:53"},
		{"", "127.0.0.1:53", "127.0.0.1:53"},
	} {
		asked := ""
		ask := patience(func(_ context.Context, _, server string) (net.Conn, error) {
			asked = server
			return nil, net.ErrClosed
		}, func() []netip.Addr {
			return Servers([]byte("nameserver " + strings.ReplaceAll(c.file, " ", "\nnameserver ")))
		})
		_, err := ask(t.Context(), "udp", c.server)
		testutil.ErrorIs(t, err, net.ErrClosed, "of the dial")
		testutil.Holds(t, slices.Contains(strings.Fields(c.want), asked), "%s is asked for %s, where the file has %q", asked, c.server, c.file)
	}
}

func TestServers(t *testing.T) {
	for text, want := range map[string]string{
		"": "[]", "# nameserver 192.0.2.9\n; nameserver 192.0.2.8\nnameserver\nnameserver x\nsearch nameserver 192.0.2.7": "[]",
		"nameserver 10.96.0.10\n\tnameserver\tfd00::a\noptions ndots:5\nnameserver fe80::1%eth0": "[10.96.0.10 fd00::a fe80::1%eth0]",
	} {
		testutil.Equal(t, fmt.Sprint(Servers([]byte(text))), want, "servers in %q", text)
	}
}
