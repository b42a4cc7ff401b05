package admission

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// conn is a connection that takes a slot.
type conn struct {
	Slot
	abandoned bool
	closing   func() // nil: at once
}

func (c *conn) Abandon() {
	c.abandoned = true
	if c.closing != nil {
		c.closing()
	}
}

// A connection that takes long to close holds up whoever takes its place, and
// nobody else.
func TestSlowCloseHoldsUpNoOtherConnection(t *testing.T) {
	for name, evict := range map[string]func(s *Slots[*conn], fat *conn){
		"a newcomer":  func(s *Slots[*conn], _ *conn) { s.Take(&conn{}, nil) },
		"a weight":    func(s *Slots[*conn], fat *conn) { s.Weigh(fat, 1000) },
		"descriptors": func(s *Slots[*conn], fat *conn) { fat.since = time.Time{}; s.MakeRoom() },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSlots[*conn](Limits{Open: 2, Bytes: 100})
			closing, release := make(chan bool), make(chan bool)
			slow, other := &conn{closing: func() { close(closing); <-release }}, &conn{}
			s.Take(slow, nil)
			s.Take(other, nil)
			_ = s.Serve(other)
			var wg sync.WaitGroup
			wg.Go(func() { evict(s, slow) })
			<-closing
			passed := make(chan bool)
			wg.Go(func() {
				s.Release(other)
				ok, _ := s.Take(&conn{}, nil)
				passed <- ok
			})
			select {
			case ok := <-passed:
				testutil.Holds(t, ok, "there was room for another")
			case <-time.After(time.Minute):
				t.Error("a slow close holds up others")
				go func() { <-passed }()
			}
			close(release)
			wg.Wait()
		})
	}
}

func TestSlotsTakeTheLongestWaiting(t *testing.T) {
	s := NewSlots[*conn](Limits{Open: 2})
	a, b, c, d := &conn{}, &conn{}, &conn{}, &conn{}
	for _, g := range []*conn{a, b} {
		ok, _ := s.Take(g, nil)
		testutil.Requires(t, ok, "no room")
	}
	testutil.NoError(t, s.Serve(a))
	ok, _ := s.Take(c, nil)
	testutil.Holds(t, ok && b.abandoned && !a.abandoned, "c got in: %v, for b: %v, for a: %v", ok, b.abandoned, a.abandoned)
	testutil.Holds(t, s.Serve(b) == ErrEvicted && !s.Await(b, func() bool { return false }),
		"b does not know that it was evicted")
	testutil.Holds(t, s.Await(a, func() bool { return false }) && !s.Await(a, func() bool { return true }),
		"a waits for its next request unless it is told to leave")
	_, _ = s.Serve(a), s.Serve(c)
	ok, warn := s.Take(d, nil)
	testutil.Holds(t, !ok && warn, "with everybody served: in %v, warned %v", ok, warn)
	_, warn = s.Take(d, nil)
	testutil.Holds(t, !warn, "warned twice")
	testutil.Holds(t, s.Release(b) && !s.Release(a) && !s.Release(c) && s.Count() == 0,
		"%d slots are taken at the end", s.Count())
}

func TestServedConnectionsWaitBehindOlderOnes(t *testing.T) {
	s := NewSlots[*conn](Limits{Open: 10})
	a, b := &conn{}, &conn{}
	s.Take(a, nil)
	s.Take(b, nil)
	_ = s.Serve(a)
	s.Await(a, func() bool { return false })
	var order []*conn
	s.Waiting(func(c *conn) { order = append(order, c) })
	testutil.EqualSlices(t, order, []*conn{b, a}, "order of b and a, which waits anew")
}

// Newcomers take the place of connections that wait for their next request, and not of each
// other. A flood takes the place of half of those at most.
func TestIdleConnectionsMakeRoomForNewcomers(t *testing.T) {
	s := NewSlots[*conn](Limits{Open: 20, Bytes: 1 << 20, Each: 20 << 10})
	take := func(n int) (taken []*conn) {
		for range n {
			c := &conn{}
			ok, _ := s.Take(c, nil)
			testutil.Holds(t, ok, "one finds no room")
			taken = append(taken, c)
		}
		return taken
	}
	lost := func(conns []*conn) (n int) {
		for _, c := range conns {
			if s.Evicted(c) {
				n++
			}
		}
		return n
	}
	idle := take(20)
	for _, c := range idle {
		_ = s.Serve(c)
		s.Await(c, func() bool { return false })
	}
	newcomers := take(5)
	testutil.Holds(t, lost(newcomers) == 0 && lost(idle) == 5 && s.Evicted(idle[0]) && !s.Evicted(idle[19]),
		"%d of 5 newcomers have lost their place, and %d of 20 that were idle", lost(newcomers), lost(idle))
	take(1000)
	testutil.Equal(t, lost(idle), 10, "of 20, a flood takes the places of")
}

// Of idle connections the oldest of the source that has most makes room, and not the only one of
// another, or one that has begun its next request.
func TestIdleConnectionsOfOneSourceMakeRoom(t *testing.T) {
	s := NewSlots[*conn](Limits{Open: 12, Bytes: 1 << 20, Each: 20 << 10})
	idle := func(address string) *conn {
		c := &conn{}
		_, _ = s.Take(c, at(address))
		_ = s.Serve(c)
		s.Await(c, func() bool { return false })
		return c
	}
	alone, begun, oldest := idle("10.0.0.1"), idle("10.0.0.2"), idle("10.0.0.3")
	for range 9 {
		idle("10.0.0.3")
	}
	s.Weigh(begun, 4<<10)
	_, _ = s.Take(&conn{}, at("10.0.0.4"))
	if s.Evicted(alone) || s.Evicted(begun) || !s.Evicted(oldest) {
		t.Errorf("the only one of a source goes: %v, the begun one: %v, the oldest: %v", s.Evicted(alone), s.Evicted(begun), s.Evicted(oldest))
	}
}

// Those that are served may be so many, and who is beyond that waits on, to be
// told so.
func TestServedConnectionsAreBounded(t *testing.T) {
	s := NewSlots[*conn](Limits{Served: 2, Waiting: 10})
	conns := make([]*conn, 4)
	for i := range conns {
		conns[i] = &conn{}
		s.Take(conns[i], nil)
	}
	for i, want := range []error{nil, nil, ErrFull, ErrFull} {
		testutil.Equal(t, s.Serve(conns[i]), want, "connection %d", i)
	}
	testutil.Succeeds(t, s.Serve(conns[0]), "one that is served already")
	waiting, _ := s.Held()
	testutil.Holds(t, waiting == 2 && s.Count() == 4, "%d of %d wait", waiting, s.Count())
	s.Release(conns[2])
	s.Await(conns[0], func() bool { return false })
	first, second := s.Serve(conns[3]), s.Serve(conns[0])
	testutil.Holds(t, first == nil && second == ErrFull, "of two for one place: %v and %v", first, second)
}

// A passing shortage costs nobody his handshake.
func TestShortageSparesYoungHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots[*conn](Limits{Open: 10})
		testutil.Holds(t, !s.MakeRoom(), "evicted nobody")
		g := &conn{}
		s.Take(g, nil)
		time.Sleep(EvictAge - time.Millisecond)
		testutil.Holds(t, !s.MakeRoom() && !g.abandoned, "evicted one that is too young")
		time.Sleep(time.Millisecond)
		testutil.Holds(t, s.MakeRoom() && g.abandoned && s.Count() == 0, "an old one keeps its place")
	})
}

func TestSlotsHoldUnderContention(t *testing.T) {
	s := NewSlots[*conn](Limits{Open: 5})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				g := &conn{}
				if ok, _ := s.Take(g, nil); !ok {
					continue
				}
				testutil.AtMost(t, s.Count(), 5, "slots that are taken")
				if s.Serve(g) == nil {
					s.Await(g, func() bool { return false })
				}
				s.Release(g)
			}
		})
	}
	wg.Wait()
	s.Waiting(func(*conn) { t.Error("one that left waits") })
	testutil.Equal(t, s.Count(), 0, "slots are taken at the end")
}

// scripted is a listener that fails as told, then waits for its end.
type scripted struct {
	net.Listener
	fail []error
	end  chan struct{}
	once sync.Once
}

func (l *scripted) Close() error {
	l.once.Do(func() { close(l.end) })
	return nil
}

func (l *scripted) Accept() (net.Conn, error) {
	if len(l.fail) == 0 {
		<-l.end
		return nil, net.ErrClosed
	}
	err := l.fail[0]
	l.fail = l.fail[1:]
	if err == nil {
		return &net.TCPConn{}, nil
	}
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

func TestAcceptorSurvivesShortages(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		synctest.Test(t, func(t *testing.T) {
			log, hook := test.NewNullLogger()
			rooms := 0
			a := Acceptor{What: "guests", Log: log, MakeRoom: func() bool { rooms++; return false }}
			ctx, cancel := context.WithCancel(t.Context())
			ln := &scripted{fail: []error{errno, nil, errno, errno, nil}, end: make(chan struct{})}
			var taken []time.Time
			start := time.Now()
			done := make(chan error, 1)
			go func() { done <- a.Run(ctx, ln, func(net.Conn) { taken = append(taken, time.Now()) }) }()
			synctest.Wait()
			time.Sleep(time.Minute)
			cancel()
			testutil.Succeeds(t, <-done, "%v", errno)
			if len(taken) != 2 || rooms != 3 || len(hook.AllEntries()) != 1 || !strings.Contains(hook.LastEntry().Message, "guests") {
				t.Fatalf("%v: took %d, asked for room %d times, logged %v", errno, len(taken), rooms, hook.AllEntries())
			}
			testutil.Between(t, taken[1].Sub(start), 3*minBackoff, maxBackoff, "%v: it took", errno)
		})
	}
}

// A pause is no longer than it must be: the accept loop comes back every second
// at least, and at once after a descriptor was freed.
func TestAcceptorPausesAreBounded(t *testing.T) {
	for freed, want := range map[bool][2]time.Duration{false: {10 * maxBackoff, 30 * maxBackoff}, true: {0, 30 * minBackoff}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			ln := &scripted{fail: append(slices.Repeat([]error{syscall.EMFILE}, 30), nil), end: make(chan struct{})}
			log, _ := test.NewNullLogger()
			a := Acceptor{What: "x", Log: log, MakeRoom: func() bool { return freed }}
			start, took := time.Now(), time.Duration(-1) // of none
			err := a.Run(ctx, ln, func(net.Conn) { took = time.Since(start); cancel() })
			testutil.Holds(t, err == nil && took >= want[0] && took <= want[1],
				"room made: %v: %v after %v, want %v to %v", freed, err, took, want[0], want[1])
		})
	}
}

// slow is a listener that takes a second to close, and does not have another wait.
type slow struct {
	*scripted
	closed time.Time
}

func (l *slow) Close() error {
	if !tunnel.Closed(l.end) {
		_ = l.scripted.Close()
		time.Sleep(time.Second)
		l.closed = time.Now()
	}
	return nil
}

// Whoever listens on the port next may do so at once.
func TestAcceptorReturnsOnceItsPortIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ln := &slow{scripted: &scripted{end: make(chan struct{})}}
		time.AfterFunc(time.Minute, cancel)
		a := Acceptor{What: "guests", Log: logrus.New()}
		err := a.Run(ctx, ln, nil)
		testutil.Holds(t, err == nil && !ln.closed.IsZero(), "%v; closed at %v", err, ln.closed)
	})
}

func TestAcceptorEndsWithABrokenListener(t *testing.T) {
	a := Acceptor{What: "guests", Log: logrus.New()}
	err := a.Run(t.Context(), &scripted{fail: []error{syscall.EINVAL}, end: make(chan struct{})}, nil)
	testutil.ErrorIs(t, err, syscall.EINVAL, "it ends")
}

// watched is a client, and what the far end of its connection sees.
func watched(t *testing.T) (client net.Conn, w *Watch, ahead *Lookahead, ctx context.Context) {
	t.Helper()
	client, far := testutil.Pair(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	ahead = NewLookahead(tunnel.Wrap(far), nil)
	return client, NewWatch(ahead, cancel), ahead, ctx
}

func TestWatch(t *testing.T) {
	t.Run("leaves", func(t *testing.T) {
		client, w, _, ctx := watched(t)
		client.Close()
		<-ctx.Done()
		if err := w.Stop(); !errors.Is(err, ErrLeft) || !errors.Is(context.Cause(ctx), ErrLeft) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("resets", func(t *testing.T) {
		client, w, _, ctx := watched(t)
		_ = client.(*net.TCPConn).SetLinger(0)
		client.Close()
		<-ctx.Done()
		testutil.ErrorIs(t, w.Stop(), ErrLeft, "the client has reset it")
	})
	t.Run("sends ahead and ends its side", func(t *testing.T) {
		client, w, ahead, ctx := watched(t)
		_, _ = io.WriteString(client, "hello")
		_ = client.(*net.TCPConn).CloseWrite()
		<-w.done
		err := w.Stop()
		testutil.Holds(t, err == nil && ctx.Err() == nil, "%v %v", err, ctx.Err())
		testutil.Equal(t, string(testutil.Must(io.ReadAll(ahead.Rest()))(t)), "hello", "what is read")
	})
	t.Run("sends more than is kept", func(t *testing.T) {
		client, w, ahead, _ := watched(t)
		sent := strings.Repeat("x", 2*AheadSize)
		_, _ = io.WriteString(client, sent)
		<-w.done // it looks no further
		testutil.NoError(t, w.Stop())
		client.Close()
		testutil.Equal(t, string(testutil.Must(io.ReadAll(ahead.Rest()))(t)), sent, "what is read")
	})
	t.Run("waits", func(t *testing.T) {
		client, w, ahead, ctx := watched(t)
		err := w.Stop()
		testutil.Holds(t, err == nil && ctx.Err() == nil, "%v", err)
		_, _ = io.WriteString(client, "later")
		got := make([]byte, 5)
		_, err = io.ReadFull(ahead.Rest(), got)
		testutil.Holds(t, err == nil && string(got) == "later", "%q, %v", got, err)
	})
}
