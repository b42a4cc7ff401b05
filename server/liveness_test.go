package server

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// freezer passes bytes on until it is frozen; then both ends stay open and
// nothing passes, as when a host loses its network.
type freezer struct {
	net.Listener
	frozen chan struct{}
	wg     sync.WaitGroup
}

func newFreezer(t *testing.T, to string) *freezer {
	f := &freezer{Listener: listenTCP(t), frozen: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	f.wg.Go(func() {
		for {
			a, err := f.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			context.AfterFunc(ctx, func() { a.Close(); b.Close() })
			f.wg.Go(func() { f.pass(a, b) })
			f.wg.Go(func() { f.pass(b, a) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = f.Close()
		f.wg.Wait()
	})
	return f
}

func (f *freezer) pass(dst, src net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := src.Read(buf)
		select {
		case <-f.frozen:
			_, _ = io.Copy(io.Discard, src)
			return
		default:
		}
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = dst.Close()
			return
		}
	}
}

// TestSilentAgentIsNoticed: an agent that is gone without a word is out, by the keepalive,
// before the caller gives up, and what waits for it fails then.
func TestSilentAgentIsNoticed(t *testing.T) {
	for _, kind := range agentKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			testSilentAgentIsNoticed(t, kind)
		})
	}
}

func testSilentAgentIsNoticed(t *testing.T, kind string) {
	r := startServer(t, func(o *Options) { o.Keepalive, o.DialTimeout = time.Second, time.Hour })
	f := newFreezer(t, r.agentAt)
	r.agentAt = f.Addr().String()
	asked := make(chan struct{})
	r.agent(kind, agentHello{id: "a"}, func(ctx context.Context, _ string) (tunnel.Conn, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	failed := make(chan error, 1)
	go func() { _, err := r.dial("connect-uds", "x:1"); failed <- err }()
	<-asked
	close(f.frozen)
	if err := <-failed; !isStatus(err, 503, "agent went away") { // the caller gives up after a minute
		t.Errorf("the caller heard %v", err)
	}
	// The caller may hear before the registry does.
	r.eventually("the agent forgotten", func() bool { return r.own.agents.Counts().Connections == 0 })
}
