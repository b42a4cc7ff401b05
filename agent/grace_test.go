package agent

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A pod is killed 30 s after it was asked to end, unless its manifest says
// otherwise. The longest drain, and the cleanup behind it, end within that time.
func TestDefaultDrainFitsAPod(t *testing.T) {
	testutil.AtMost(t, DefaultGrace, 25*time.Second, "it lasts")
}

// What a destination has yet to take is not cut as the agent goes, though the stream
// that it came by has ended.
func TestDrainLetsDestinationsTakeTheRest(t *testing.T) {
	t.Parallel() // it waits
	testutil.Each(t, map[string]bool{protocolLink: false, protocolGRPC: true}, func(t *testing.T, old bool) {
		t.Parallel()
		s, opts := newServed(t, "s", old)
		release, took := make(chan struct{}), make(chan int64, 1)
		sink := testutil.Serve(t, func(c *net.TCPConn) {
			_, _ = c.SetReadBuffer(4<<10), c.CloseWrite() // it has nothing to say
			<-release
			n, _ := io.Copy(io.Discard, c)
			took <- n
		})
		opts.Grace = patience
		opts.Dialer = tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			c, err := net.Dial("tcp", sink)
			if err != nil {
				return nil, err
			}
			_ = c.(*net.TCPConn).SetWriteBuffer(4 << 10) // or else the kernel takes it all
			return tunnel.Wrap(c), nil
		})
		_, stop := runAgent(t, opts)
		c := testutil.Opened(s.next().Dial(t.Context(), tunnel.NewFlow("tcp", sink)))(t)
		rest := make([]byte, 100<<10)
		testutil.Must(c.Write(rest))(t)
		testutil.NoError(t, c.CloseWrite())
		testutil.Must(io.Copy(io.Discard, c))(t)
		go func() { _ = stop() }()
		time.Sleep(3 * drainQuiet / 2)
		close(release)
		testutil.Equal(t, <-took, int64(len(rest)), "bytes that the destination got")
	})
}

// An agent that is stopped says whether there was a server to tell.
func TestDrainSaysWhoWasTold(t *testing.T) {
	ca, config := newCA(t)
	for connected, want := range map[bool]string{
		true:  "draining: servers were told to use other agents",
		false: "draining: no server is connected that would have to be told",
	} {
		address := testutil.Refusing(t)
		if connected {
			address = newTestServer(t, ca, "s", false).address()
		}
		opts := testOptions(config, address)
		opts.Grace = patience
		log, said := logtest.NewNullLogger()
		opts.Log = log
		a, stop := runAgent(t, opts)
		testutil.Eventually(t, "it has tried", func() bool { return len(a.Servers()) > 0 || !connected && len(said.AllEntries()) > 0 })
		testutil.NoError(t, stop())
		found := slices.ContainsFunc(said.AllEntries(), func(e *logrus.Entry) bool { return e.Message == want })
		testutil.Holds(t, found, "%q is not in the log", want)
	}
}

// An agent that drains, and has plain connections alone, looks for no other server, which could
// not carry them. It goes once they have ended, or the last server has.
func TestDrainOfPlainConnectionsLooksForNoServer(t *testing.T) {
	testutil.Each(t, map[string]func(*world){
		"they end":           func(w *world) { w.first("a").setStreams(0) },
		"its server is lost": func(w *world) { w.stop("a") },
	}, func(t *testing.T, over func(*world)) {
		w := newWorld()
		inWorld(t, w, direct(w, "a", "b"), func(o *Options) { o.Grace = time.Hour }, func(b *bench) {
			b.within(patience, "a", "b")
			w.first("a").setStreams(1)
			w.stop("b")
			lost := time.Now()
			time.Sleep(patience)
			testutil.AtLeast(t, w.attemptsSince(lost), 1, "attempts before it drains")
			stopped := make(chan struct{})
			go func() { b.stop(); close(stopped) }()
			time.Sleep(connectTimeout) // attempts under way end
			drains := time.Now()
			time.Sleep(patience)
			testutil.Holds(t, !tunnel.Closed(stopped), "it has gone with a connection open")
			over(w)
			ended := time.Now()
			<-stopped
			testutil.AtMost(t, time.Since(ended), 2*drainQuiet, "it goes after")
			testutil.Equal(t, w.attemptsSince(drains), 0, "attempts while it drains")
		})
	})
}
