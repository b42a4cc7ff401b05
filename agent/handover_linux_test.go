package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// succession is agents of one node, one after the other, and connections through the newest.
type succession struct {
	t      *testing.T
	opts   Options
	server *testServer
	path   string
	newest atomic.Pointer[arrival]
	dialer tunnel.Dialer
}

func newSuccession(t *testing.T, old bool) *succession {
	s := &succession{t: t, path: filepath.Join(t.TempDir(), "handover")}
	s.server, s.opts = newServed(t, "server-1", old)
	opener := resume.New(resume.Options{Window: time.Minute})
	t.Cleanup(opener.Wait)
	t.Cleanup(opener.Close)
	s.dialer = opener.Dialer(s)
	return s
}

// Dial implements tunnel.Dialer by the newest agent.
func (s *succession) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return s.newest.Load().Dial(ctx, f)
}

// heir is an agent of a succession.
type heir struct {
	*Handover
	log  *logrustest.Hook
	link arrival
	told context.CancelFunc // to stop
	done chan error
}

// start runs another agent, and waits until it is connected.
func (s *succession) start() *heir {
	s.t.Helper()
	log, hook := logrustest.NewNullLogger()
	opts := s.opts
	h := &heir{Handover: testutil.Must(OpenHandover(s.path, opts.ID, opts.Servers, log))(s.t), log: hook, done: make(chan error, 1)}
	opts.Handover, opts.Log, opts.Registerer, opts.ResumeWindow, opts.Grace = h.Handover, log, nil, time.Minute, patience
	a := testutil.Must(New(opts))(s.t)
	ctx, cancel := context.WithCancel(s.t.Context())
	h.told = cancel
	go func() { h.done <- a.Run(ctx) }()
	h.link = s.server.next()
	s.newest.Store(&h.link)
	return h
}

// end waits until the agent has left.
func (h *heir) end(t *testing.T) {
	t.Helper()
	h.told()
	testutil.NoError(t, testutil.Receive(t, "the agent ends", h.done))
	h.Close()
}

func (h *heir) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.socket != nil
}

// open makes connections through the newest agent.
func (s *succession) open(n int) []tunnel.Conn { return opened(s.t, s.dialer, n) }

// opened makes connections.
func opened(t *testing.T, dialer tunnel.Dialer, n int) (open []tunnel.Conn) {
	t.Helper()
	address := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.Copy(c, struct{ io.Reader }{c}) // no splice: Go keeps its pipes until the next collection
	})
	for range n {
		c := testutil.Must(dialer.Dial(t.Context(), tunnel.NewFlow("tcp", address)))(t)
		t.Cleanup(func() { _ = c.Close() })
		testutil.Must(io.WriteString(c, "one"))(t)
		open = append(open, c)
	}
	return open
}

// goOn checks that no byte was lost on connections that opened has made, and ends them.
func goOn(t *testing.T, open []tunnel.Conn) {
	t.Helper()
	for i, c := range open {
		_ = c.SetDeadline(time.Now().Add(patience))
		testutil.Must(io.WriteString(c, "two"))(t)
		got := make([]byte, 6)
		_, err := io.ReadFull(c, got)
		testutil.Requires(t, err == nil && string(got) == "onetwo", "connection %d: %q, %v", i, got, err)
		_ = c.Close()
	}
}

// visit makes a connection to the agent that has the path.
func (s *succession) visit() wire {
	s.t.Helper()
	c := testutil.Must(net.Dial("unix", s.path))(s.t)
	s.t.Cleanup(func() { _ = c.Close() })
	return wire{c.(*net.UnixConn)}
}

// say sends messages of those kinds.
func (s *succession) say(w wire, kinds ...string) {
	s.t.Helper()
	for _, kind := range kinds {
		m := message{Kind: kind}
		if kind == msgHello {
			m = message{Kind: msgHello, Version: handoverVersion, ID: "agent-1", Servers: s.opts.Servers}
		}
		testutil.NoError(s.t, w.send(m, -1))
	}
}

// want receives messages of those kinds.
func (s *succession) want(w wire, kinds ...string) {
	s.t.Helper()
	for _, kind := range kinds {
		m, err := w.receive(time.Now().Add(patience))
		if m.closeFile(); err != nil || m.Kind != kind {
			s.t.Fatalf("received %q, %v, want %q", m.Kind, err, kind)
		}
	}
}

// wantHangUp fails the test if the other end hangs up no sooner than it would give up waiting.
func (s *succession) wantHangUp(w wire) {
	s.t.Helper()
	_, err := w.receive(time.Now().Add(handoverTimeout * 4 / 5))
	testutil.Requires(s.t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "it does not hang up: %v", err)
}

// Connections go on at the next agent, batch after batch.
func TestHandover(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	first := s.start()
	open := s.open(3*handoverBatch + 1)
	second := s.start()
	first.end(t)
	testutil.Equal(t, testutil.Lines(first.log, "handed over", logrus.InfoLevel), 1, "how often it was logged")
	goOn(t, open)
	second.end(t)
}

// A successor that hangs up with a batch in its hands leaves that, and the next, which was
// taken out of use meanwhile, to the holder.
func TestHandoverToASuccessorThatFails(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	first := s.start()
	open := s.open(3 * handoverBatch)
	w := s.visit()
	s.say(w, msgHello)
	s.want(w, msgWelcome)
	s.say(w, msgReady)
	first.told()
	for batch := range 2 {
		for range handoverBatch {
			s.want(w, msgOffer)
		}
		s.want(w, msgEnd)
		if batch == 0 {
			s.say(w, msgTaken)
			s.want(w, msgConfirm)
		}
	}
	_ = w.conn.Close()
	testutil.Eventually(t, "it keeps the others", func() bool { return testutil.Lines(first.log, "not all", logrus.WarnLevel) == 1 })
	lost := 0
	for _, c := range open {
		_ = c.SetDeadline(time.Now().Add(patience)) // those that are lost end at once
		got := make([]byte, 6)
		_, err := io.WriteString(c, "two")
		if err == nil {
			_, err = io.ReadFull(c, got)
		}
		switch {
		case err != nil:
			lost++
		case string(got) != "onetwo":
			t.Errorf("got %q", got)
		}
		_ = c.Reset(nil)
	}
	testutil.Equal(t, lost, handoverBatch, "lost connections, as many as in the batch that was confirmed")
	first.end(t)
}

// A successor that is admitted as the holder begins to drain gets the connections, too.
func TestHandoverToALateSuccessor(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	first := s.start()
	open := s.open(1)
	w := s.visit()
	testutil.Eventually(t, "the holder knows of it", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return len(first.Handover.open) == 1
	})
	first.told()
	testutil.Eventually(t, "the holder drains", func() bool { return testutil.Lines(first.log, "draining", logrus.InfoLevel) == 1 })
	s.say(w, msgHello)
	s.want(w, msgWelcome)
	s.say(w, msgReady)
	s.want(w, msgOffer, msgEnd)
	_ = w.conn.Close()
	goOn(t, open)
	first.end(t)
}

// An agent that appears while the first one drains succeeds the second.
func TestHandoverWhileAnotherDrains(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	first := s.start()
	held := testutil.Must(first.link.Dial(t.Context(), tunnel.NewFlow("tcp", testutil.Echo(t))))(t) // does not outlive its link
	defer held.Close()
	second := s.start()
	first.told()
	testutil.Eventually(t, "the second agent has the path", second.holds)
	open := s.open(1)
	third := s.start()
	second.end(t)
	testutil.Equal(t, testutil.Lines(second.log, "handed over", logrus.InfoLevel), 1, "lines of what the second agent has handed over")
	goOn(t, open)
	_ = held.Close()
	first.end(t)
	third.end(t)
}

// An agent with nothing that could be handed over does not wait for its successor.
func TestHandoverOfNothing(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, true)
	first := s.start()
	w := s.visit()
	s.say(w, msgHello)
	s.want(w, msgWelcome)
	first.told()
	s.want(w, msgDone)
	first.end(t)
	testutil.Equal(t, testutil.Lines(first.log, "not ready", logrus.WarnLevel), 0, "how often it has waited")
}

// A successor that sends what the holder does not wait for does not delay it.
func TestHandoverToAChatterer(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	first := s.start()
	w := s.visit()
	s.say(w, msgHello)
	s.want(w, msgWelcome)
	s.say(w, msgReady, msgReady)
	s.wantHangUp(w)
	first.end(t)
}

// Why a successor is refused is not warned of each time that it asks.
func TestRefusedSuccessors(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	first := s.start()
	_ = s.visit().conn.Close() // it only looks whether the path is served
	for range 3 {
		w := s.visit()
		testutil.NoError(t, w.send(message{Kind: msgHello, Version: handoverVersion + 1}, -1))
		s.want(w, msgRefused)
		s.wantHangUp(w)
	}
	first.end(t)
	testutil.Equal(t, testutil.Lines(first.log, "refused", logrus.WarnLevel), 1, "warnings")
}

// A successor that cannot go on hangs up, so that the holder does not wait for its answer.
func TestHandoverFromAHolderThatIsUnknown(t *testing.T) {
	t.Parallel() // it waits
	s := newSuccession(t, false)
	socket := testutil.Opened(net.Listen("unix", s.path))(t)
	came := make(chan wire, 1)
	go func() {
		c, err := socket.Accept()
		if err != nil {
			return
		}
		w := wire{c.(*net.UnixConn)}
		read, write, _ := os.Pipe()
		defer read.Close()
		s.t.Cleanup(func() { _ = write.Close() })
		m, _ := w.receive(time.Now().Add(patience))
		if m.closeFile(); w.send(message{Kind: msgWelcome, Version: handoverVersion, ID: "agent-1"}, int(read.Fd())) == nil {
			came <- w
		}
	}()
	next := s.start()
	w := testutil.Receive(t, "it comes", came)
	defer w.conn.Close()
	s.want(w, msgReady)
	s.say(w, "other")
	s.wantHangUp(w)
	next.end(t)
}

// Of a holder that ends, in whatever way, a successor has the batches that were confirmed, and the
// last one if no other process has that. It closes the sockets of the others.
func TestBatchesOfAHolderThatEnds(t *testing.T) {
	t.Parallel() // it waits
	const offer, whole = msgOffer, msgOffer + " " + msgOffer + " " + msgEnd
	for name, c := range map[string]struct {
		says string
		end  func(h *ending)
		n    int
	}{
		"killed, nothing offered":             {"", (*ending).die, 0},
		"killed in a batch":                   {offer, (*ending).die, 1},
		"killed behind a batch":               {whole, (*ending).die, 2},
		"killed behind one that is confirmed": {whole + " " + msgConfirm, (*ending).die, 2},
		"killed in the second batch":          {whole + " " + msgConfirm + " " + offer, (*ending).die, 3},
		"hung up in a batch":                  {offer, (*ending).hangUp, 0},
		"hung up in the second batch":         {whole + " " + msgConfirm + " " + offer, (*ending).hangUp, 2},
		"killed, and it keeps the batch":      {offer, (*ending).keep, 0},
		"says what nobody knows, in a batch":  {offer + " other", (*ending).stay, 0},
		"done":                                {whole + " " + msgConfirm + " " + msgDone, (*ending).stay, 2},
		"offers too many":                     {strings.Repeat(offer+" ", handoverBatch+1), (*ending).stay, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			h := newEnding(t)
			for _, kind := range strings.Fields(c.says) {
				h.say(kind)
			}
			c.end(h)
			testutil.Equal(t, testutil.Receive(t, "it has all", h.taken), c.n, "connections that go on")
			h.agent.ends.Close() // so that those end, too
			for i, far := range h.fars {
				_ = far.SetReadDeadline(time.Now().Add(patience))
				_, err := far.Read(make([]byte, 1))
				testutil.Holds(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "socket %d: %v", i, err)
			}
		})
	}
}

// ending is a holder that ends, and its successor.
type ending struct {
	t     *testing.T
	agent *Agent
	wire
	life  *os.File
	taken chan int
	fars  []net.Conn // the other ends of all sockets
}

func newEnding(t *testing.T) *ending {
	_, opts := newServed(t, "server-1", false)
	opts.Registerer, opts.ResumeWindow = nil, time.Minute
	h := &ending{t: t, agent: testutil.Must(New(opts))(t), taken: make(chan int, 1)}
	t.Cleanup(h.agent.ends.Wait)
	t.Cleanup(h.agent.ends.Close)
	socket := testutil.Must(net.Listen("unix", filepath.Join(t.TempDir(), "handover")))(t)
	defer socket.Close()
	h.wire = wire{testutil.Must(net.Dial("unix", socket.Addr().String()))(t).(*net.UnixConn)}
	near := testutil.Must(socket.Accept())(t).(*net.UnixConn)
	read, write, err := os.Pipe()
	testutil.NoError(t, err)
	h.life = write
	t.Cleanup(func() { _, _, _ = h.conn.Close(), write.Close(), read.Close() })
	before := &holder{wire: wire{near}, life: read}
	go func() {
		n, _ := before.take(t.Context(), h.agent, logging.Silent())
		_ = near.Close()
		h.taken <- n
	}()
	return h
}

// say sends a message of that kind. An offer, or one of an unknown kind, comes with a socket.
func (h *ending) say(kind string) {
	h.t.Helper()
	m, fd := message{Kind: kind}, -1
	if kind == msgOffer || kind == "other" {
		far, near := testutil.Pair(h.t)
		h.fars = append(h.fars, far)
		file := testutil.Must(near.File())(h.t)
		defer file.Close()
		_ = near.Close()
		fd = int(file.Fd())
		m.Conn = &resume.Snapshot{Token: [16]byte{byte(len(h.fars))}, ID: "id", Address: "a.example:1", Window: time.Minute, Epoch: 1}
	}
	testutil.NoError(h.t, h.send(m, fd))
	if kind == msgEnd {
		m, err := h.receive(time.Now().Add(patience))
		testutil.Requires(h.t, err == nil && m.Kind == msgTaken, "received %q, %v", m.Kind, err)
	}
}

func (h *ending) stay()   {}
func (h *ending) hangUp() { _ = h.conn.Close() }
func (h *ending) die()    { _ = h.life.Close(); h.hangUp() }
func (h *ending) keep()   { _, _ = h.life.Write([]byte{1}); h.die() }

// spent is a listener that is at its end.
type spent struct{ net.Listener }

func (spent) Accept() (net.Conn, error) { return nil, syscall.EINVAL }

// Nobody but the log can tell why the next agent finds none before it.
func TestHoldThatEndsIsLogged(t *testing.T) {
	log, lines := logrustest.NewNullLogger()
	(&Handover{log: log}).hold(t.Context(), spent{testutil.Listen(t)})
	last := lines.LastEntry()
	testutil.Requires(t, last != nil, "nothing is logged")
	testutil.Holds(t, last.Data[logrus.ErrorKey] == error(syscall.EINVAL), "its cause is %v", last.Data)
}
