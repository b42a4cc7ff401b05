package tunnel_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// script is a Source that delivers what the test says, if it is asked to.
type script struct {
	tunnel.Source // is read where nobody asks
	before        []string
	asked         chan tunnel.Receiver
	delivers      atomic.Bool
	read          chan struct{} // told when before was read
}

func newScript(c tunnel.Conn, before ...string) *script {
	return &script{Source: c.In(), before: before, asked: make(chan tunnel.Receiver, 1), read: make(chan struct{}, 1)}
}

func (s *script) Deliver(r tunnel.Receiver) bool {
	s.delivers.Store(true)
	s.asked <- r
	return true
}

func (s *script) ReadChunks(dst []tunnel.Chunk) (int, error) {
	if !s.delivers.Load() {
		return s.Source.ReadChunks(dst)
	}
	if len(s.before) == 0 {
		s.read <- struct{}{}
		return 0, nil
	}
	dst[0] = tunnel.CopyChunk([]byte(s.before[0]))
	s.before = s.before[1:]
	return 1, nil
}

// A Source delivers on its read loop, so only to what never blocks there: not to
// TLS, say, whose CloseWrite may wait for its peer.
func TestSourceDeliversOnlyToNonblockingSinks(t *testing.T) {
	for name, c := range map[string]struct {
		wrap func(net.Conn) tunnel.Conn
		want bool
	}{
		"a socket":                 {tunnel.Wrap, true},
		"a socket, read ahead":     {func(c net.Conn) tunnel.Conn { return tunnel.Unread(tunnel.Wrap(c), []byte("x")) }, true},
		"any other connection":     {func(c net.Conn) tunnel.Conn { return tunnel.Wrap(named{c}) }, false},
		"another that is replaced": {func(c net.Conn) tunnel.Conn { return tunnel.With(tunnel.Wrap(named{c}), tunnel.Parts{}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, a := testutil.Pair(t)
			b, target := testutil.Pair(t)
			s := newScript(tunnel.Wrap(a))
			relay := &tunnel.Relay{A: tunnel.With(tunnel.Wrap(a), tunnel.Parts{In: s}), B: c.wrap(b)}
			done := run(t.Context(), relay)
			_, _ = target.Write([]byte("back"))
			_ = target.Close()
			_ = a.CloseRead() // ends the direction that is not delivered
			select {
			case r := <-s.asked:
				<-s.read
				r.End()
				<-done
			case <-done:
			}
			testutil.Equal(t, s.delivers.Load(), c.want, "it delivers")
		})
	}
}

// A relay reads what came before it takes anything, counts what it takes, and
// passes the end on.
func TestRelayTakesDeliveredChunks(t *testing.T) {
	client, a := testutil.Pair(t)
	b, target := testutil.Pair(t)
	s := newScript(tunnel.Wrap(a), "one ", "two ")
	flow := tunnel.NewFlow("tcp", "x:1")
	relay := &tunnel.Relay{A: tunnel.With(tunnel.Wrap(a), tunnel.Parts{In: s}), B: tunnel.Wrap(b), Flow: flow}
	result := run(t.Context(), relay)
	r := <-s.asked
	<-s.read // the turn is over
	three := tunnel.CopyChunk([]byte("three "))
	testutil.Equal(t, r.Take(three), three.Len(), "bytes that were taken")
	r.Flush()
	s.before = []string{"four"}
	r.Ready()
	<-s.read
	r.End()
	got := testutil.Must(io.ReadAll(target))(t)
	testutil.Equal(t, string(got), "one two three four", "what the target is given")
	up, _ := flow.Sent()
	testutil.Equal(t, up, int64(len(got)), "bytes that were counted")
	_ = target.Close()
	testutil.Equal(t, testutil.Err(client.Read(make([]byte, 1))), io.EOF, "what the client reads")
	testutil.Succeeds(t, outcome(t, result), "the relay")
	three.Release()
}
