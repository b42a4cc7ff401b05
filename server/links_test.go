package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// served is a link that serveLink serves in a bubble, and the peer's end of it.
type served struct {
	near, far *link.Session
	wire      net.Conn // the peer's
	cut       context.CancelFunc
	drain     context.CancelFunc
	left      atomic.Int32 // calls of leave
	returned  chan any     // gets what serveLink panicked with, or nil
}

// serve makes a link and serves it. leave, if not nil, is called as it leaves, and
// else the link is closed.
func serve(t *testing.T, cfg link.Config, leave func()) *served {
	t.Helper()
	a, b := net.Pipe()
	s := &served{wire: b, returned: make(chan any, 1)}
	met := testutil.Later(func() error {
		var err error
		cfg.Hello = link.Hello{Role: link.RoleServer}
		s.near, err = link.Meet(t.Context(), a, cfg)
		return err
	})
	var err error
	s.far, err = link.Connect(t.Context(), b, link.Config{Hello: link.Hello{Role: link.RoleClient}})
	testutil.NoError(t, err)
	testutil.NoError(t, <-met)
	if leave == nil {
		leave = func() { _ = s.near.Close() }
	}
	var life, drains context.Context
	life, s.cut = context.WithCancel(context.Background())
	drains, s.drain = context.WithCancel(context.Background())
	go func() {
		defer func() { s.returned <- recover() }()
		serveLink(life, drains, s.near, func() {
			s.left.Add(1)
			leave()
		})
	}()
	synctest.Wait()
	return s
}

// end ends all there still is.
func (s *served) end() {
	s.cut()
	s.drain()
	_ = s.far.Close()
	<-s.returned
}

// held is a destination that a dial reaches once it is let go, whatever its
// context says.
func held(release <-chan struct{}) *tunnel.Forwarder {
	return &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		<-release
		return nil, net.ErrClosed
	})}
}

// Whatever ends a link, it is left once, and then nothing of it runs.
func TestALinkIsLeftOnce(t *testing.T) {
	testutil.EachInBubble(t, map[string]func(*served){
		"the peer closes it":              func(s *served) { _ = s.far.Close() },
		"its wire is gone":                func(s *served) { _ = s.wire.Close() },
		"this side closes it":             func(s *served) { _ = s.near.Close() },
		"it is cut":                       func(s *served) { s.cut() },
		"it drains":                       func(s *served) { s.drain() },
		"it is cut and drains":            func(s *served) { s.cut(); s.drain() },
		"it drains, and the peer goes":    func(s *served) { s.drain(); _ = s.far.Close() },
		"all at once":                     func(s *served) { s.cut(); s.drain(); _ = s.wire.Close(); _ = s.far.Close() },
		"it is cut as the peer closes it": func(s *served) { go s.cut(); _ = s.far.Close() },
	}, func(t *testing.T, end func(*served)) {
		s := serve(t, link.Config{}, nil)
		time.Sleep(time.Minute)
		if n := s.left.Load(); n != 0 || s.near.Err() != nil {
			t.Fatalf("left %d times before anything happened: %v", n, s.near.Err())
		}
		end(s)
		failure := <-s.returned
		testutil.Requires(t, failure == nil, "%v", failure)
		n := s.left.Load()
		testutil.Holds(t, n == 1 && s.near.Err() != nil, "left %d times: %v", n, s.near.Err())
		s.returned <- nil
		s.end()
	})
}

// A link that drains goes on until nothing is open, or until it is cut.
func TestALinkThatDrainsWaitsForItsStreams(t *testing.T) {
	testutil.EachInBubble(t, map[string]func(s *served, release func(), c *tunnel.Flow){
		"its last stream ends": func(_ *served, release func(), _ *tunnel.Flow) { release() },
		"it is cut":            func(s *served, release func(), _ *tunnel.Flow) { s.cut(); synctest.Wait(); release() },
	}, func(t *testing.T, end func(s *served, release func(), c *tunnel.Flow)) {
		release, dialed := make(chan struct{}), make(chan error, 1)
		s := serve(t, link.Config{Handler: held(release)}, nil)
		f := tunnel.NewFlow("tcp", "x:1")
		go func() {
			_, err := s.far.Dial(context.Background(), f)
			dialed <- err
		}()
		synctest.Wait()
		s.drain()
		time.Sleep(time.Minute)
		n := s.left.Load()
		testutil.Requires(t, n == 0 && s.near.Err() == nil, "left %d times while a stream was open: %v", n, s.near.Err())
		end(s, func() { close(release) }, f)
		<-s.returned
		testutil.Holds(t, <-dialed != nil, "the dial succeeded")
		s.returned <- nil
		s.end()
	})
}

// A link that has ended is left at once, whatever it still runs, which is joined.
func TestALinkIsLeftBeforeItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := serve(t, link.Config{Handler: held(release)}, nil)
		go func() { _, _ = s.far.Dial(context.Background(), tunnel.NewFlow("tcp", "x:1")) }()
		synctest.Wait()
		_ = s.far.Close()
		time.Sleep(time.Minute)
		n := s.left.Load()
		testutil.Holds(t, n == 1 && len(s.returned) == 0, "left %d times, returned %v, while a dial goes on", n, len(s.returned) == 1)
		close(release)
		s.end()
	})
}

// panics is a log that cannot be written to.
type panics struct{}

func (panics) Levels() []logrus.Level { return logrus.AllLevels }

func (panics) Fire(*logrus.Entry) error { panic("no log") }

func panicking() (log *logrus.Logger) { log = logrus.New(); log.AddHook(panics{}); return log }

// A panic is not hidden by the wait for what panicked.
func TestALinkPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := serve(t, link.Config{Log: panicking()}, func() { <-release }) // as Close, which waits for the link's end
		time.Sleep(time.Second)
		_, _ = s.wire.Write(bytes.Repeat([]byte{0xff}, 64)) // a violation, which is logged
		select {
		case got := <-s.returned:
			testutil.Equal(t, got, "no log", "panicked with")
		case <-time.After(time.Minute):
			t.Error("serveLink waits")
		}
		close(release)
		s.returned <- nil
		s.end()
	})
}

// A link that does nothing takes one goroutine of the server, whose stack has not
// grown by the handshake: 4 KiB, of which TLS needs more than half.
func TestIdleLinksKeepSmallStacks(t *testing.T) {
	r := startServer(t)
	const links, most = 200, 6 << 10 // stacks come in spans of 32 KiB
	config, met := r.tls(link.ALPN), make(chan net.Conn)
	testutil.Start(t, func(ctx context.Context) { pingAll(ctx, met) })
	goroutines, stacks := resting()
	for i := range links {
		at, hello := r.agentAt, link.Hello{Role: link.RoleAgent, ID: fmt.Sprint(i), Features: []string{link.FeatureLanes}}
		if i%2 > 0 {
			at, hello.Role, hello.Group = r.tcp, link.RoleClient, "sixteen bytes it"
		}
		c := mute(t, at, config, hello)
		defer c.Close()
		met <- c
	}
	r.eventually("all are known", func() bool { return len(r.adminPeers()) == links })
	r.eventually("one goroutine for each, and 6 KiB of stack", func() bool { // a timer of each link starts another now and then
		moreGoroutines, moreStacks := resting()
		n, per := moreGoroutines-goroutines, (float64(moreStacks)-float64(stacks))/links
		t.Logf("%d goroutines for %d links, and %.0f bytes of stack for each", n, links, per)
		return n <= links+links/20 && (per <= most || !testutil.ExactMemory)
	})
}

// mute makes a link of which this process runs nothing.
func mute(t *testing.T, at string, config *tls.Config, hello link.Hello) net.Conn {
	t.Helper()
	c := testutil.Must(tls.Dial("tcp", at, config))(t)
	answer := make([]byte, 4<<10)
	testutil.Must(c.Write(encoded(hello)))(t)
	testutil.Must(c.Read(answer))(t)
	return c
}

// pingAll has the links that come by met live until ctx ends: each pings, as one that is idle
// does, on this goroutine. It rests until its first ping and from the second one on.
func pingAll(ctx context.Context, met <-chan net.Conn) {
	ping := []byte{6, 0, 0, 8, 19: 0}
	tick := time.NewTicker(link.DefaultPingInterval)
	defer tick.Stop()
	for links := []net.Conn(nil); ; {
		select {
		case c := <-met:
			links = append(links, c)
		case <-tick.C:
			for _, c := range links {
				_, _ = c.Write(ping)
			}
		case <-ctx.Done():
			return
		}
	}
}

// encoded is a HELLO, as who dials sends it.
func encoded(hello link.Hello) []byte {
	near, far := net.Pipe()
	go func() { _, _ = link.Connect(context.Background(), near, link.Config{Hello: hello}) }()
	defer far.Close() // and so ends Connect
	frame := make([]byte, 4<<10)
	n, _ := far.Read(frame)
	return frame[:n]
}

// resting is how many goroutines there are, and how much memory their stacks take,
// once those have shrunk that can.
func resting() (goroutines int, stacks uint64) {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.StackInuse
}
