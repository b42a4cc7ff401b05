package legacy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// wire is a mux over nothing.
type wire struct {
	*mux
	wg sync.WaitGroup
}

func newWire(limits Limits) *wire {
	w := &wire{mux: newMux(func(any) error { return nil }, FromAgent, ToAgent, limits.withDefaults(), NoMetrics{}, logging.Silent())}
	w.wg.Go(w.sender.run)
	return w
}

func (w *wire) end() {
	w.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
	w.wg.Wait()
}

func (w *wire) opener() *conn {
	c := newOpener(w.mux, 1, 1, false, "a:1")
	_, _ = w.add(1, c)
	return c
}

// A relay that is stuck in a write to a client that reads nothing hears all the
// same that the agent is gone. The end of a connection is no such thing.
func TestLossPassesStalledDestination(t *testing.T) {
	for name, c := range map[string]struct {
		play func(w *wire, c *conn)
		want tunnel.Code
	}{
		"agent lost":     {func(w *wire, _ *conn) { w.lose(&tunnel.ResetError{Code: tunnel.CodeLost}) }, tunnel.CodeLost},
		"reset":          {func(_ *wire, c *conn) { c.peerResets(&tunnel.ResetError{Code: tunnel.CodePeerReset}) }, tunnel.CodePeerReset},
		"ended in order": {func(_ *wire, c *conn) { c.peerEnds() }, tunnel.CodeUnknown},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			w := newWire(Limits{})
			defer w.end()
			conn := w.opener()
			near, client := net.Pipe()
			defer client.Close()
			relay := &tunnel.Relay{A: tunnel.Wrap(near), B: conn}
			ended := make(chan error, 1)
			go func() { ended <- relay.Run(t.Context()) }()
			conn.receive(chunks(1, 16<<10))
			synctest.Wait() // the relay is stuck
			c.play(w, conn)
			time.Sleep(time.Minute)
			synctest.Wait()
			select {
			case err := <-ended:
				testutil.Holds(t, c.want != tunnel.CodeUnknown && tunnel.CodeOf(err) == c.want,
					"the relay ended with %v", err)
			default:
				testutil.Equal(t, c.want, tunnel.CodeUnknown, "how the relay is to end, which goes on")
				client.Close()
				<-ended
			}
		})
	}
}

// What stands around a connection does not hide it from who hastens it.
func TestHastenFindsWrappedConn(t *testing.T) {
	w := newWire(Limits{})
	defer w.end()
	c := w.opener()
	hasten(tunnel.With(c, tunnel.Parts{}))
	testutil.Equal(t, c.end.hasty, true, "it is hasty")
}

// TestForgottenConnectionHoldsNoBudget: a connection that its mux has forgotten,
// since its peer was told of the end, may still have something to send when the
// stream is lost. Its memory is given back nevertheless.
func TestForgottenConnectionHoldsNoBudget(t *testing.T) {
	for name, end := range map[string]func(c *conn){
		"closed, and the peer goes on": func(c *conn) {
			_ = c.Close()
			c.receive([]tunnel.Chunk{tunnel.CopyChunk([]byte("more"))})
		},
		"ended, then reset": func(c *conn) {
			_ = c.CloseWrite()
			_ = c.Reset(io.ErrUnexpectedEOF)
		},
	} {
		for duplex, kind := range map[bool]string{true: "duplex", false: "old"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				limits := Limits{Budget: shares.NewBudget(1 << 20)}.withDefaults()
				m := newMux(func(any) error { return nil }, ToAgent, FromAgent, limits, NoMetrics{}, nil)
				c := newServer(m, 1, duplex, "far:1", func(error) {})
				testutil.NoError(t, c.announce(1))
				testutil.NoError(t, testutil.Err(c.Write([]byte("unsent")))) // nobody runs the sender
				end(c)
				testutil.Fails(t, c.WriteChunks(chunks(2, 10)), "it takes more behind its end")
				m.lose(&tunnel.ResetError{Code: tunnel.CodeLost})
				testutil.Equal(t, limits.Budget.Used(), 0, "bytes of the budget are lost")
			})
		}
	}
}

// Between our own peers a connection is all that x/net asks of one.
func TestConnConforms(t *testing.T) {
	var next atomic.Int64
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		// The suite writes without reading until a deadline passes, which is
		// not what these bounds are for.
		r := newRig(t, Limits{Budget: shares.NewBudget(8 << 30), stallTimeout: time.Hour})
		p, s := r.agent(false)
		id := next.Add(1)
		opened := newOpener(p.mux, id, id, true, "far:1")
		served := newServer(s.mux, id, true, "far:1", func(error) {})
		_, _ = p.mux.add(id, opened)
		_, _ = s.mux.add(id, served)
		return opened, served, func() { opened.Close(); served.Close() }, nil
	})
}
