package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func quietLog() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func TestShutdownWhenIdleIsQuick(t *testing.T) {
	r := startServer(t, func(o *Options) { o.Grace = time.Minute })
	for _, kind := range agentKinds {
		r.agent(kind, agentHello{id: kind}, echoing)
	}
	if _, err := r.clientLink(); err != nil { // a warm link of a sidecar
		t.Fatal(err)
	}
	for _, kind := range clientKinds {
		c := r.mustDial(kind, "x:1")
		r.roundTrip(c, 1000)
		c.Close()
	}
	r.eventually("idle", func() bool { return r.metric("established_connections 0") })
	r.stopped()
}

// TestDrain: connections go on, new ones do not come, everybody is told, and
// the end comes with the last connection.
func TestDrain(t *testing.T) {
	for _, kind := range clientKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := startServer(t, func(o *Options) { o.Grace = time.Minute })
			a := r.agent("grpc", agentHello{id: "a"}, echoing)
			b := r.agent("link", agentHello{id: "b"}, echoing)
			side := testutil.Must(r.clientLink())(t)
			c := r.mustDial(kind, "x:1")
			r.roundTrip(c, 1000)
			r.stop()
			for i, who := range []interface {
				Draining() <-chan struct{}
				Done() <-chan struct{}
			}{a, b, side} {
				select {
				case <-who.Draining():
				case <-who.Done():
					if i < 2 { // an idle sidecar's link may end at once
						t.Fatal("an agent was cut off")
					}
				case <-time.After(20 * time.Second):
					t.Fatal("not told: ", []string{"agent by gRPC", "agent by link", "sidecar"}[i])
				}
			}
			r.silent("tcp", r.tcp)
			if code, body := r.get(r.health, "/readyz"); code != 500 || !strings.Contains(body, "shutting down") {
				t.Errorf("readyz: %d %s", code, body)
			}
			r.hasMetrics("draining 1")
			r.roundTrip(c, 100<<10)
			if err := r.wait(100 * time.Millisecond); err == nil {
				t.Fatal("the server went while a connection was open")
			}
			c.Close()
			r.ended()
			for _, agent := range []agent{a, b} {
				r.ends("the end of an agent's connection, with the server", agent.Done())
			}
		})
	}
}

// What a client by gRPC wrote before it closed still goes its way: its connection has
// ended, and a slow destination has yet to read.
func TestDrainWaitsForWhatClosedClientsWrote(t *testing.T) {
	const size = 64 << 10
	r := startServer(t, func(o *Options) { o.Grace = time.Minute })
	far := make(chan net.Conn, 1)
	r.agent("link", agentHello{id: "a"}, func(context.Context, string) (tunnel.Conn, error) {
		near, f := net.Pipe()
		far <- f
		return tunnel.Wrap(near), nil
	})
	c := r.mustDial("grpc-tls", "x:1")
	end := <-far
	defer end.Close()
	testutil.Must(c.Write(make([]byte, size)))(t)
	testutil.NoError(t, c.Close())
	r.eventually("the client has gone", func() bool { return r.metric(`listener_connections{listener="clients"} 0`) })
	r.stop()
	r.silent("tcp", r.tcp)
	testutil.Fails(t, r.wait(100*time.Millisecond), "the server went before all was delivered")
	_ = end.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := io.Copy(io.Discard, end); n != size || err != nil {
		t.Errorf("%d of %d bytes came: %v", n, size, err)
	}
	end.Close()
	r.ended()
}

func TestGraceEnds(t *testing.T) {
	for name, grace := range map[string]time.Duration{"over": 200 * time.Millisecond, "none": -1} {
		for _, kind := range clientKinds {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				r := startServer(t, func(o *Options) { o.Grace = grace })
				far := make(chan tunnel.Conn, 1)
				r.agent("link", agentHello{id: "b"}, func(ctx context.Context, _ string) (tunnel.Conn, error) {
					near, f := tcpPair()
					far <- f
					return near, nil
				})
				c := r.mustDial(kind, "x:1")
				end := <-far
				defer end.Close()
				r.stopped()
				_ = end.SetReadDeadline(time.Now().Add(20 * time.Second))
				if _, err := end.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the destination reads %v, want a reset", err)
				}
				testutil.Fails(t, testutil.Err(c.Read(make([]byte, 1))), "the client reads on")
			})
		}
	}
}

// TestPendingDialIsCancelledByTheEnd: a dial that nobody answers does not hold
// a shutdown without grace.
func TestPendingDialIsCancelledByTheEnd(t *testing.T) {
	t.Parallel() // it waits
	for _, kind := range clientKinds {
		r := startServer(t, func(o *Options) { o.Grace = -1; o.DialTimeout = time.Hour })
		asked := make(chan struct{})
		r.agent("link", agentHello{id: "b"}, func(ctx context.Context, _ string) (tunnel.Conn, error) {
			close(asked)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		failed := make(chan error, 1)
		go func() { _, err := r.dial(kind, "x:1"); failed <- err }()
		<-asked
		r.stop()
		if err := r.wait(20 * time.Second); err != nil {
			t.Fatal(kind, err)
		}
		if err := <-failed; err == nil {
			t.Error(kind, "no error")
		}
	}
}

// A pod is killed 30 s after it was asked to end, unless its manifest says
// otherwise. The longest drain and the steps after it take less.
func TestDefaultDrainFitsAPod(t *testing.T) {
	if DefaultGrace > 25*time.Second {
		t.Errorf("it lasts %v", DefaultGrace)
	}
}
