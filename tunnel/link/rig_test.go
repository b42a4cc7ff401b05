package link_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// destinations is a Dialer with ends of every kind.
type destinations struct{ hanging atomic.Int64 } // dials that have not been cancelled

func (d *destinations) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	switch f.Address {
	case "echo:1":
		return tunnel.Wrap(newLoop()), nil
	case "hang:1":
		d.hanging.Add(1)
		defer d.hanging.Add(-1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "refuse:1":
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused, Address: f.Address}
	case "deaf:1":
		return tunnel.Wrap(&deaf{loop: newLoop()}), nil
	case "over:1":
		return tunnel.Wrap(&over{deaf{loop: newLoop()}}), nil
	default:
		return nil, &tunnel.DialError{Failure: tunnel.FailNoSuchHost, Address: f.Address}
	}
}

// deaf is a connection that takes no bytes and says nothing until it is closed.
type deaf struct{ *loop }

func (d *deaf) Read([]byte) (int, error) { return 0, d.wait() }

func (d *deaf) Write([]byte) (int, error) { return 0, d.wait() }

func (d *deaf) CloseWrite() error { return nil }

// over is one that has ended its own direction.
type over struct{ deaf }

func (*over) Read([]byte) (int, error) { return 0, io.EOF }

func (d *deaf) wait() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.closed == nil {
		d.cond.Wait()
	}
	return d.closed
}

// loop is a Conn that reads back the bytes written to it, FIN included.
type loop struct {
	undated
	*pipe
}

func newLoop() *loop { return &loop{pipe: newPipe(64 << 10)} }

func (l *loop) CloseWrite() error { return l.end() }

func (l *loop) Close() error { return l.Reset(net.ErrClosed) }

func (l *loop) Reset(cause error) error { return l.close(cause) }

// undated is the part of a net.Conn in memory that has addresses, and no deadlines.
type undated struct{}

func (undated) LocalAddr() net.Addr { return nowhere{}.LocalAddr() }

func (undated) RemoteAddr() net.Addr { return nowhere{}.RemoteAddr() }

func (undated) SetDeadline(time.Time) error { return nil }

func (undated) SetReadDeadline(time.Time) error { return nil }

func (undated) SetWriteDeadline(time.Time) error { return nil }

// rig is a session under test, its raw peer, and what it shares with other
// links of the process.
type rig struct {
	*rawPeer
	ses    *link.Session
	dests  *destinations
	budget *link.Budget
	dials  chan dialResult
}

type dialResult struct {
	conn tunnel.Conn
	err  error
}

// tcpRig is newRig over TCP, which ends with the test, and then checks that nothing
// stays.
func tcpRig(t *testing.T, initiator bool, cfg link.Config) *rig {
	t.Helper()
	noLeaks(t)
	near, far := tcpPair(t)
	r := newRig(t, near, far, initiator, cfg)
	t.Cleanup(r.end)
	return r
}

// newRig shakes hands. initiator says that the session under test dialed, so
// that the raw peer's stream ids are even.
func newRig(t testing.TB, conn, far net.Conn, initiator bool, cfg link.Config) *rig {
	t.Helper()
	return newRigTo(t, 1, conn, far, initiator, cfg)
}

// newRigTo is newRig to a peer with a role.
func newRigTo(t testing.TB, role byte, conn, far net.Conn, initiator bool, cfg link.Config) *rig {
	t.Helper()
	r := &rig{rawPeer: &rawPeer{t: t, conn: far}, dests: &destinations{}, dials: make(chan dialResult, 1024)}
	if cfg.Budget == nil {
		cfg.Budget = link.NewBudget(64 << 20)
	}
	if cfg.Handler == nil {
		cfg.Handler = &tunnel.Forwarder{Dialer: r.dests}
	}
	r.budget = cfg.Budget
	hello := helloFrame(role)
	for _, name := range cfg.Hello.Features { // the raw peer has what the session has
		hello.payload = append(hello.payload, fields(7, name)...)
	}
	started := testutil.Later(func() error {
		start := link.Accept
		if initiator {
			start = link.Connect
		}
		var err error
		r.ses, err = start(context.Background(), conn, cfg)
		return err
	})
	if initiator {
		r.wantType(tHello, 0)
		r.send(hello)
	} else {
		r.send(hello)
		r.wantType(tHello, 0)
	}
	testutil.NoError(t, <-started)
	return r
}

// end closes everything and checks that nothing stays.
func (r *rig) end() {
	r.t.Helper()
	closed := make(chan struct{})
	go func() { _ = r.ses.Close(); close(closed) }()
	_, _ = io.Copy(io.Discard, r.conn) // let it say goodbye
	<-closed
	_ = r.conn.Close()
	testutil.Equal(r.t, r.ses.Streams(), 0, "streams left")
	for range len(r.dials) {
		if d := <-r.dials; d.conn != nil {
			_ = d.conn.Close()
		}
	}
	testutil.Equal(r.t, r.budget.Used(), 0, "bytes of the budget still held")
	testutil.Equal(r.t, r.ses.Stats().Unread, 0, "bytes still counted as unread")
}

// dial opens a stream from the session and returns its id once OPEN is here.
func (r *rig) dial() uint64 {
	r.t.Helper()
	go func() {
		conn, err := r.ses.Dial(context.Background(), tunnel.NewFlow("tcp", "raw:1"))
		r.dials <- dialResult{conn, err}
	}()
	f := r.next()
	testutil.Requires(r.t, f.typ == tOpen, "got %v, want OPEN", f)
	return f.id
}

// dialed is dial with OPENED sent and the stream taken.
func (r *rig) dialed() (uint64, tunnel.Conn) {
	r.t.Helper()
	id := r.dial()
	r.send(frame{tOpened, 0, id, fields(2, u64(firstWindow))})
	d := <-r.dials
	testutil.NoError(r.t, d.err)
	r.t.Cleanup(func() { _ = d.conn.Close() })
	return id, d.conn
}

// noLeaks checks at the end of a test that its goroutines have ended.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// joinedTo serves streams by opening others on to.
func joinedTo(to *link.Session) tunnel.Handler {
	return resume.Splice(&tunnel.Forwarder{Dialer: to})
}

// resumes introduces a process that takes part in resuming.
var resumes = link.Hello{Features: []string{link.FeatureResume}}

// between is a process between two links, from a to b and from c to d: forwarder, given c,
// serves what a opens, and far what c opens. b and c share the budget.
func between(t *testing.T, hello link.Hello, budget *link.Budget, far tunnel.Handler, forwarder func(c *link.Session) tunnel.Handler) (abcd []*link.Session) {
	t.Helper()
	toA, fromA := net.Pipe()
	toD, fromD := net.Pipe()
	c, d := sessions(t, link.Buffered(toD), link.Buffered(fromD), link.Config{Hello: hello, Budget: budget}, link.Config{Hello: hello, Handler: far})
	a, b := sessions(t, link.Buffered(toA), link.Buffered(fromA), link.Config{Hello: hello}, link.Config{Hello: hello, Budget: budget, Handler: forwarder(c)})
	return []*link.Session{a, b, c, d}
}
