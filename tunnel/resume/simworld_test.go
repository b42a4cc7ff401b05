package resume_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// simMemory is each end's budget: no run needs it all.
const simMemory = 64 << 20

// simulation is one run of TestSimulate.
type simulation struct {
	t       *testing.T
	rnd     *rand.Rand // of who makes the faults
	ends    [2]*resume.Manager
	memory  [2]*link.Budget
	servers []*relayer
	direct  bool        // applications have the agent's ends themselves, and not by a relay
	scarce  bool        // memory is, at times
	deadly  atomic.Bool // something has happened that connections cannot outlive
	hushed  atomic.Bool // or dials: a link was silent for longer than these may take
	faults  int
	pauses  [2]atomic.Int64
	stop    chan struct{}
	wg      sync.WaitGroup
	apps    sync.WaitGroup

	mu      sync.Mutex
	dests   map[string]duplex    // what the agent has made, by address
	asked   map[int]asked        // what was last asked for, by transfer
	watched map[int]link.Watcher // who watches the newest carrier of a transfer
}

// asked is a request to resume.
type asked struct {
	address string
	resume  tunnel.Resume
}

// duplex is what an application has of a connection.
type duplex interface {
	net.Conn
	CloseWrite() error
	Reset(error) error
}

// another is a source of its own for what runs beside the faults.
func (s *simulation) another() *rand.Rand { return rand.New(rand.NewPCG(s.rnd.Uint64(), 1)) }

// relayer is a server, whose links come back.
type relayer struct {
	*server
	s    *simulation
	back time.Time // when it is there again; the server's lock guards it
}

// die takes both links, and is back after a while.
func (v *relayer) die(length time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.back = time.Now().Add(length)
	for _, h := range []hop{v.near, v.far} {
		if h.wire != nil {
			h.wire.cut()
		}
	}
}

// away is how long it is not there still.
func (v *relayer) away() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Until(v.back)
}

// keep has it linked to one of its sides until the simulation stops.
func (v *relayer) keep(near bool, rnd *rand.Rand) {
	var before hop
	for !tunnel.Closed(v.s.stop) {
		v.link(near)
		h := v.get(near)
		if before.b != nil {
			v.replace(before, rnd)
			before = hop{}
		}
		select {
		case <-h.a.Done():
		case <-h.b.Done():
		case <-v.s.stop:
		}
		if tunnel.Closed(h.a.Done()) && !tunnel.Closed(h.b.Done()) {
			before = h // of which the server hears by the next link
			continue
		}
		if rnd.IntN(2) == 0 { // each of them notices in its time
			for _, end := range []*link.Session{h.a, h.b} {
				select {
				case <-end.Done():
				case <-v.s.stop:
				}
			}
		}
		v.set(near, hop{}).close()
		v.s.sleep(upTo(rnd, 300*time.Millisecond))
		v.s.sleep(v.away())
	}
	if before.b != nil {
		before.close()
	}
}

// replace ends a link that the other side says it has lost. Before that, there are streams on both
// links, and late bytes may arrive.
func (v *relayer) replace(lost hop, rnd *rand.Rand) {
	if v.s.sleep(upTo(rnd, 20*time.Millisecond)); rnd.IntN(2) == 0 {
		lost.wire.hold(0, false)
		lost.wire.hold(1, false)
		v.s.sleep(upTo(rnd, 20*time.Millisecond))
	}
	lost.b.Replaced()
	lost.close()
}

func (s *simulation) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.stop:
	}
}

// serve is what the agent does for an opener.
func (s *simulation) serve() tunnel.Handler {
	if s.direct {
		return s
	}
	return &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		a, b := newWire()
		s.made(f, b)
		return poured{tunnel.Wrap(a), a}, nil
	})}
}

// poured is a wire's end that takes on the spot what there is room for, as a socket
// does, so that relays have it delivered to.
type poured struct {
	tunnel.Conn
	end *wireEnd
}

func (p poured) Out() tunnel.Sink { return p }

func (p poured) Nonblocking() bool { return true }

func (p poured) TryWrite(c tunnel.Chunk) int { return p.end.try(c.Bytes()) }

func (p poured) Flush() {}

func (p poured) WriteChunks(src []tunnel.Chunk) error {
	defer tunnel.ReleaseAll(src)
	for _, c := range src {
		if _, err := p.end.Write(c.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// Serve implements tunnel.Handler, where applications have the ends themselves.
func (s *simulation) Serve(_ context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	a, b := newWire() // only for its addresses
	defer a.Close()
	defer b.Close()
	near, err := answer(tunnel.Wrap(a), nil)
	if err == nil {
		s.made(f, near)
	}
	ended(err)
}

func (s *simulation) made(f *tunnel.Flow, dest duplex) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dests[f.Address] = dest
}

// dialer is the opener's way out for one transfer: by any server.
func (s *simulation) dialer(id int, rnd *rand.Rand) tunnel.Dialer {
	watches := func(by link.Watcher) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watched[id] = by
	}
	return s.ends[0].Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Resume.Again() {
			s.mu.Lock()
			s.asked[id] = asked{f.Address, *f.Resume}
			s.mu.Unlock()
		}
		for ctx.Err() == nil {
			var failed error
			for _, i := range rnd.Perm(len(s.servers)) {
				near := s.servers[i].get(toOpener).a
				if near == nil {
					continue
				}
				c, err := overheard{watches: watches}.by(near.Dial(ctx, f))
				if err == nil {
					return c, nil
				}
				failed = err
				if tunnel.LostInFlight(err) || !tunnel.FailureOf(err).Retryable() {
					break // it is to be asked for under another number, or not at all
				}
			}
			if failed != nil {
				return nil, failed
			}
			time.Sleep(10 * time.Millisecond) // no server is linked
		}
		return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable}
	}))
}

// again asks for a carrier that was asked for before, as a network does that brings a
// request twice.
func (s *simulation) again(v *relayer) {
	near, id := v.get(toOpener).a, s.rnd.IntN(4)
	s.mu.Lock()
	a, some := s.asked[id]
	s.mu.Unlock()
	if near == nil || !some {
		return
	}
	f := tunnel.NewFlow("tcp", a.address)
	f.Resume = &a.resume
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if c, err := near.Dial(ctx, f); err == nil {
			_ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeLost})
		}
	})
}

// transfer is a connection and what its applications do.
type transfer struct {
	s      *simulation
	id     int
	rnd    *rand.Rand
	relays bool // the client has it by a relay, as sidecars do
	sides  [2]*side
}

// side is an application.
type side struct {
	tr    *transfer
	text  []byte       // that it writes
	ended atomic.Int64 // behind so much of it it has ended its direction; -1: not yet
	quits how
	bulk  bool
	write *rand.Rand
	read  *rand.Rand
}

// how an application is through with what it has to write.
type how int

const (
	orderly how = iota
	closes      // and reads no more
	resets
)

func (s *simulation) newTransfer(id int) *transfer {
	tr := &transfer{s: s, id: id, rnd: s.another(), relays: s.rnd.IntN(2) == 0}
	for i := range tr.sides {
		a := &side{tr: tr, write: s.another(), read: s.another(), text: make([]byte, s.rnd.IntN(512<<10))}
		a.ended.Store(-1)
		switch s.rnd.IntN(20) {
		case 0:
			a.quits = closes
		case 1:
			a.quits = resets
		case 2, 3, 4:
			a.bulk, a.text = true, make([]byte, s.rnd.IntN(8<<20))
		}
		_, _ = rand.NewChaCha8([32]byte{byte(id), byte(i)}).Read(a.text)
		tr.sides[i] = a
	}
	return tr
}

// simDial bounds a dial: it may have to outlast silence.
const simDial = 40 * time.Second

func (tr *transfer) run() {
	time.Sleep(upTo(tr.rnd, 500*time.Millisecond))
	client, err := tr.dial()
	if err != nil {
		testutil.Holds(tr.s.t, tr.s.deadly.Load() || tr.s.hushed.Load(), "transfer %d was not dialed: %v", tr.id, err)
		return
	}
	dest := tr.dest()
	var wg sync.WaitGroup
	for i, c := range []duplex{client, dest} {
		wg.Go(func() { tr.sides[i].writes(c) })
		wg.Go(func() { tr.sides[i].reads(c, tr.sides[1-i]) })
	}
	wg.Wait()
	_ = client.Close()
	_ = dest.Close()
}

// dest is what the agent has made for it, which may be a moment behind its answer.
func (tr *transfer) dest() duplex {
	for range 1000 {
		tr.s.mu.Lock()
		dest := tr.s.dests[address(tr.id)]
		tr.s.mu.Unlock()
		if dest != nil {
			return dest
		}
		time.Sleep(time.Millisecond)
	}
	panic("the agent has made nothing")
}

// dial makes the connection, whose client has it itself or by a relay.
func (tr *transfer) dial() (duplex, error) {
	dialer, flow := tr.s.dialer(tr.id, tr.rnd), tunnel.NewFlow("tcp", address(tr.id))
	if !tr.relays {
		ctx, cancel := context.WithTimeout(context.Background(), simDial)
		defer cancel()
		return dialer.Dial(ctx, flow)
	}
	client, near := newWire()
	answered := make(chan error, 1)
	front := tunnel.Forwarder{Dialer: dialer, DialTimeout: simDial}
	tr.s.wg.Go(func() {
		_ = tunnel.Forward(context.Background(), &front, flow, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
			answered <- err
			return poured{tunnel.Wrap(near), near}, nil
		})
	})
	return client, <-answered
}

// failed fails the test unless the connection may end before it is through.
func (a *side) failed(what string, err error) {
	may := a.tr.s.deadly.Load() || a.tr.sides[0].quits != orderly || a.tr.sides[1].quits != orderly
	testutil.Holds(a.tr.s.t, may, "transfer %d: %s: %v", a.tr.id, what, err)
}

// writes writes the text, a piece at a time, and is through with it then.
func (a *side) writes(c duplex) {
	pause, most := 20*time.Millisecond, 4<<10
	if a.bulk {
		pause, most = 10*time.Millisecond, 200<<10
	}
	for at := 0; at < len(a.text); {
		time.Sleep(upTo(a.write, pause))
		timed := a.write.IntN(20) == 0
		if timed {
			_ = c.SetWriteDeadline(time.Now().Add(upTo(a.write, 3*time.Millisecond)))
		}
		n, err := c.Write(a.text[at:min(len(a.text), at+1+a.write.IntN(most))])
		at += n
		if timed {
			_ = c.SetWriteDeadline(time.Time{})
		}
		if err != nil && !(timed && errors.Is(err, os.ErrDeadlineExceeded)) {
			a.failed("writing", err)
			return
		}
	}
	if a.quits == resets {
		_ = c.Reset(nil)
		return
	}
	a.ended.Store(int64(len(a.text)))
	if a.quits == closes {
		_ = c.Close()
		return
	}
	if err := c.CloseWrite(); err != nil {
		a.failed("ending", err)
	}
}

// reads reads what the other side writes, and wants just that.
func (a *side) reads(c duplex, other *side) {
	buf := make([]byte, 64<<10)
	for got := 0; ; {
		if a.read.IntN(40) == 0 {
			time.Sleep(upTo(a.read, 300*time.Millisecond))
		}
		timed := a.read.IntN(10) == 0
		if timed {
			_ = c.SetReadDeadline(time.Now().Add(upTo(a.read, 5*time.Millisecond)))
		}
		n, err := c.Read(buf[:1+a.read.IntN(len(buf))])
		if timed {
			_ = c.SetReadDeadline(time.Time{})
		}
		if a.quits == closes && a.ended.Load() >= 0 {
			return
		}
		if !bytes.HasPrefix(other.text[got:], buf[:n]) {
			a.tr.s.t.Errorf("transfer %d: other bytes at %d", a.tr.id, got)
			return
		}
		got += n
		switch ended := other.ended.Load(); {
		case err == nil, timed && errors.Is(err, os.ErrDeadlineExceeded):
		case err == io.EOF && ended != int64(got):
			a.tr.s.t.Errorf("transfer %d: the end behind %d bytes, where it is behind %d", a.tr.id, got, ended)
			return
		case err == io.EOF:
			return
		default:
			a.failed("reading", err)
			return
		}
	}
}
