package link_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// The frames of docs/link-protocol.md §2, written down a second time: a test
// that used the package's own encoders would not notice a change of the wire.
const (
	tHello  = 0
	tOpen   = 1
	tOpened = 2
	tData   = 3
	tCredit = 4
	tReset  = 5
	tPing   = 6
	tGoAway = 7
	tInfo   = 8

	fin = 1 // of DATA
	ack = 1 // of PING

	largestPayload = 16372
	firstWindow    = 128 << 10
)

// frame is one frame as it travels.
type frame struct {
	typ, flags byte
	id         uint64
	payload    []byte
}

func (f frame) String() string {
	p := fmt.Sprintf("%x", f.payload)
	if len(p) > 80 {
		p = fmt.Sprintf("%s... (%d bytes)", p[:80], len(f.payload))
	}
	return fmt.Sprintf("{type %d flags %d id %d payload %s}", f.typ, f.flags, f.id, p)
}

func (f frame) bytes() []byte {
	b := []byte{f.typ, f.flags}
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.payload)))
	b = binary.BigEndian.AppendUint64(b, f.id)
	return append(b, f.payload...)
}

// u16, u64 and fields build payloads.
func u16(v uint16, text ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, v)
	for _, t := range text {
		b = append(b, t...)
	}
	return b
}

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// fields takes key, value pairs; a value is a string or []byte.
func fields(pairs ...any) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		var value []byte
		switch v := pairs[i+1].(type) {
		case string:
			value = []byte(v)
		case []byte:
			value = v
		}
		b = binary.BigEndian.AppendUint16(b, uint16(pairs[i].(int)))
		b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
		b = append(b, value...)
	}
	return b
}

func helloFrame(role byte) frame { return frame{tHello, 0, 0, fields(1, []byte{role}, 2, "raw/1")} }

func openFrame(id uint64, address string) frame {
	return frame{tOpen, 0, id, fields(2, address, 3, u64(firstWindow))}
}

// rawPeer is the far side of a session, frame by frame.
type rawPeer struct {
	t     testing.TB
	conn  net.Conn
	pings uint64
}

// send writes frames; what the session answers meanwhile waits in its own
// goroutines, since its read loop never writes.
func (p *rawPeer) send(frames ...frame) {
	p.t.Helper()
	var b []byte
	for _, f := range frames {
		b = append(b, f.bytes()...)
	}
	p.sendBytes(b)
}

func (p *rawPeer) sendBytes(b []byte) {
	p.t.Helper()
	_ = p.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("raw peer writes: %v", err)
	}
}

// read returns the next frame of any kind.
func (p *rawPeer) read() (frame, error) {
	var h [12]byte
	_ = p.conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(p.conn, h[:]); err != nil {
		return frame{}, err
	}
	f := frame{typ: h[0], flags: h[1], id: binary.BigEndian.Uint64(h[4:])}
	f.payload = make([]byte, binary.BigEndian.Uint16(h[2:]))
	if len(f.payload) > largestPayload {
		p.t.Errorf("a frame with %d bytes came from the session", len(f.payload))
	}
	_, err := io.ReadFull(p.conn, f.payload)
	return f, err
}

// next returns the next frame that is not one of the session's own PINGs.
func (p *rawPeer) next() frame {
	p.t.Helper()
	for {
		f, err := p.read()
		if err != nil {
			p.t.Fatalf("raw peer reads: %v", err)
		}
		if f.typ != tPing || f.flags&ack != 0 {
			return f
		}
	}
}

// want fails the test unless the next frame is exactly this one.
func (p *rawPeer) want(want frame) {
	p.t.Helper()
	if got := p.next(); got.typ != want.typ || got.flags != want.flags || got.id != want.id || !bytes.Equal(got.payload, want.payload) {
		p.t.Fatalf("got frame %v, want %v", got, want)
	}
}

// wantType returns the next frame, which must be of this type and stream.
func (p *rawPeer) wantType(typ byte, id uint64) frame {
	p.t.Helper()
	f := p.next()
	if f.typ != typ || f.id != id {
		p.t.Fatalf("got frame %v, want type %d on stream %d", f, typ, id)
	}
	return f
}

func (p *rawPeer) wantReset(id uint64, code uint16) {
	p.t.Helper()
	p.want(frame{tReset, 0, id, u16(code)})
}

func (p *rawPeer) wantOpened(id uint64, failure uint16) {
	p.t.Helper()
	f := p.wantType(tOpened, id)
	var got uint16
	if value, ok := fieldOf(f.payload, 1); ok {
		got = binary.BigEndian.Uint16(value)
	}
	if got != failure {
		p.t.Fatalf("OPENED says failure %d, want %d (%v)", got, failure, f)
	}
	if _, ok := fieldOf(f.payload, 2); ok != (failure == 0) {
		p.t.Fatalf("OPENED with failure %d: credit given: %v", failure, ok)
	}
}

func fieldOf(b []byte, key uint16) ([]byte, bool) {
	for len(b) >= 4 {
		n := int(binary.BigEndian.Uint16(b[2:]))
		if binary.BigEndian.Uint16(b) == key {
			return b[4 : 4+n], true
		}
		b = b[4+n:]
	}
	return nil, false
}

// wantGoAway expects the link to end with a code, and nothing after it.
func (p *rawPeer) wantGoAway(code uint16) {
	p.t.Helper()
	f := p.wantType(tGoAway, 0)
	if got := binary.BigEndian.Uint16(f.payload); got != code {
		p.t.Fatalf("GOAWAY with code %d (%q), want %d", got, f.payload[2:], code)
	}
	if f, err := p.read(); err == nil {
		p.t.Fatalf("frame %v after GOAWAY", f)
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, syscall.ECONNRESET) {
		p.t.Fatalf("the connection was not closed after GOAWAY: %v", err)
	}
}

// wantNothing proves that whatever was sent last has no answer: everything the
// session has to say comes before its answer to the second of two PINGs.
func (p *rawPeer) wantNothing() {
	p.t.Helper()
	for range 2 {
		p.pings++
		p.send(frame{tPing, 0, 0, u64(p.pings)})
		p.want(frame{tPing, ack, 0, u64(p.pings)})
	}
}

// open opens a stream at the session and returns once it is answered.
func (p *rawPeer) open(id uint64, address string) {
	p.t.Helper()
	p.send(openFrame(id, address))
	p.wantOpened(id, 0)
}

// echo proves that the link carries streams: id is a stream not used before.
func (p *rawPeer) echo(id uint64) {
	p.t.Helper()
	p.open(id, "echo:1")
	p.send(frame{tData, fin, id, []byte("are you there")})
	f := p.wantType(tData, id)
	if string(f.payload) != "are you there" {
		p.t.Fatalf("got %v, want the echo", f)
	}
	if f.flags != fin { // FIN may come by itself
		p.want(frame{tData, fin, id, nil})
	}
}

// destinations is a Dialer with ends of every kind.
type destinations struct {
	mu      sync.Mutex
	hanging int // dials that have not been cancelled
}

func (d *destinations) Dial(ctx context.Context, _, address string) (tunnel.Conn, error) {
	switch address {
	case "echo:1":
		return newLoop(), nil
	case "hang:1":
		return nil, d.hang(ctx)
	case "refuse:1":
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused, Address: address}
	case "deaf:1":
		return &deaf{loop: newLoop()}, nil
	default:
		return nil, &tunnel.DialError{Failure: tunnel.FailNoSuchHost, Address: address}
	}
}

func (d *destinations) hang(ctx context.Context) error {
	d.mu.Lock()
	d.hanging++
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	d.hanging--
	d.mu.Unlock()
	return context.Cause(ctx)
}

// deaf is a Conn that takes no bytes and says nothing until it is closed.
type deaf struct{ *loop }

func (d *deaf) Read([]byte) (int, error)  { return 0, d.wait() }
func (d *deaf) Write([]byte) (int, error) { return 0, d.wait() }
func (d *deaf) CloseWrite() error         { return nil }

func (d *deaf) wait() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.closed == nil {
		d.cond.Wait()
	}
	return d.closed
}

// loop is a Conn that reads what was written to it, FIN included.
type loop struct {
	mu     sync.Mutex
	cond   sync.Cond
	buf    []byte
	fin    bool
	closed error
}

// loopCap is what a loop holds before Write blocks.
const loopCap = 64 << 10

func newLoop() *loop {
	l := &loop{}
	l.cond.L = &l.mu
	return l
}

func (l *loop) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.buf) == 0 {
		if l.closed != nil {
			return 0, l.closed
		}
		if l.fin {
			return 0, io.EOF
		}
		l.cond.Wait()
	}
	n := copy(p, l.buf)
	l.buf = l.buf[n:]
	l.cond.Broadcast()
	return n, nil
}

func (l *loop) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.buf) > loopCap && l.closed == nil {
		l.cond.Wait()
	}
	if l.closed != nil {
		return 0, l.closed
	}
	l.buf = append(l.buf, p...)
	l.cond.Broadcast()
	return len(p), nil
}

func (l *loop) CloseWrite() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fin = true
	l.cond.Broadcast()
	return nil
}

func (l *loop) Close() error { return l.Reset(net.ErrClosed) }

func (l *loop) Reset(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil {
		l.closed = cause
	}
	l.cond.Broadcast()
	return nil
}

func (l *loop) LocalAddr() net.Addr              { return nowhere{}.LocalAddr() }
func (l *loop) RemoteAddr() net.Addr             { return nowhere{}.RemoteAddr() }
func (l *loop) SetDeadline(time.Time) error      { return nil }
func (l *loop) SetReadDeadline(time.Time) error  { return nil }
func (l *loop) SetWriteDeadline(time.Time) error { return nil }

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

// newRig shakes hands. initiator says that the session under test dialed, so
// that the raw peer's stream ids are even.
func newRig(t testing.TB, conn, far net.Conn, initiator bool, cfg link.Config) *rig {
	t.Helper()
	r := &rig{rawPeer: &rawPeer{t: t, conn: far}, dests: &destinations{}, dials: make(chan dialResult, 1024)}
	if cfg.Budget == nil {
		cfg.Budget = link.NewBudget(64 << 20)
	}
	if cfg.Forwarder == nil {
		cfg.Forwarder = &tunnel.Forwarder{Dialer: r.dests}
	}
	r.budget = cfg.Budget
	started := make(chan error, 1)
	go func() {
		start := link.Accept
		if initiator {
			start = link.Connect
		}
		var err error
		r.ses, err = start(context.Background(), conn, cfg)
		started <- err
	}()
	if initiator {
		r.wantType(tHello, 0)
		r.send(helloFrame(1))
	} else {
		r.send(helloFrame(1))
		r.wantType(tHello, 0)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
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
	if n := r.ses.Streams(); n != 0 {
		r.t.Errorf("%d streams left", n)
	}
	for range len(r.dials) {
		if d := <-r.dials; d.conn != nil {
			_ = d.conn.Close()
		}
	}
	if n := r.budget.Used(); n != 0 {
		r.t.Errorf("%d bytes of the budget still held", n)
	}
	if n := r.ses.Stats().Unread; n != 0 {
		r.t.Errorf("%d bytes still counted as unread", n)
	}
}

// dial opens a stream from the session and returns its id once OPEN is here.
func (r *rig) dial() uint64 {
	r.t.Helper()
	go func() {
		conn, err := r.ses.Dial(context.Background(), "tcp", "raw:1")
		r.dials <- dialResult{conn, err}
	}()
	f := r.next()
	if f.typ != tOpen {
		r.t.Fatalf("got %v, want OPEN", f)
	}
	return f.id
}

// dialed is dial with OPENED sent and the stream taken.
func (r *rig) dialed() (uint64, tunnel.Conn) {
	r.t.Helper()
	id := r.dial()
	r.send(frame{tOpened, 0, id, fields(2, u64(firstWindow))})
	d := <-r.dials
	if d.err != nil {
		r.t.Fatal(d.err)
	}
	r.t.Cleanup(func() { _ = d.conn.Close() })
	return id, d.conn
}

// noLeaks checks at the end of a test that its goroutines have ended.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
