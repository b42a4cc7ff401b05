package resume_test

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// struck is the error of a dial whose link was lost before it was answered.
var struck = &tunnel.DialError{Failure: tunnel.FailUnavailable, LostInFlight: true}

// A dial that is asked for again while the first still goes on at the agent takes
// its place; one that is older than what there is changes nothing. That memory is
// scarce by then changes nothing either.
func TestRepeatedDialTakesThePlaceOfTheFirst(t *testing.T) {
	t.Run("plenty of memory", func(t *testing.T) { repeatedDial(t, 0) })
	t.Run("scarce memory", func(t *testing.T) { repeatedDial(t, 1<<30) })
}

func repeatedDial(t *testing.T, held int) {
	var under, most atomic.Int32
	dials := make(chan struct{}, 10)
	w := &world{t: t, serve: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		most.Store(max(most.Load(), under.Add(1)))
		defer under.Add(-1)
		dials <- struct{}{}
		if f.Resume == nil || f.Resume.Attempt == 1 {
			a, b := net.Pipe()
			t.Cleanup(func() { b.Close() })
			return tunnel.Wrap(a), nil
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})}}
	w.begin(1, time.Minute)
	h := &hostile{w: w, token: [16]byte{7}}
	old := testutil.Later(func() error { return testutil.Err(h.attempt(0)) })
	<-dials
	again := testutil.Later(func() error { return testutil.Err(h.attempt(0)) })
	select {
	case err := <-again:
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailStale, "what the same attempt is told while it goes on")
	case <-dials:
		t.Fatal("the same attempt is dialed twice")
	}
	w.memory.Hold(held)
	st := testutil.Must(h.attempt(1))(t)
	defer st.Close()
	testutil.Equal(t, tunnel.FailureOf(<-old), tunnel.FailStale, "what the first is told")
	for number := range uint32(2) {
		testutil.Equal(t, tunnel.FailureOf(testutil.Err(h.attempt(number))), tunnel.FailStale, "attempt %d again", number)
	}
	testutil.Equal(t, w.agent.Len(), 1, "connections")
	testutil.Equal(t, most.Load(), 1, "dials at once")
}

// A dial that succeeds although it was given up becomes nothing: what came of it
// would end at once, and with it the attempt that took its place.
func TestGivenUpDialBecomesNothing(t *testing.T) {
	fars := make(chan net.Conn, 2)
	dials := make(chan struct{}, 2)
	w := &world{t: t, serve: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		dials <- struct{}{}
		if f.Resume.Attempt == 0 {
			<-ctx.Done() // and the destination has answered just before
		}
		a, b := net.Pipe()
		fars <- b
		return tunnel.Wrap(a), nil
	})}}
	w.begin(1, time.Minute)
	h := &hostile{w: w, token: [16]byte{7}}
	old := testutil.Later(func() error { return testutil.Err(h.attempt(0)) })
	<-dials
	st := testutil.Opened(h.attempt(1))(t)
	testutil.Equal(t, tunnel.FailureOf(<-old), tunnel.FailStale, "what the first is told")
	first := <-fars
	defer first.Close()
	_ = first.SetReadDeadline(time.Now().Add(20 * time.Second))
	testutil.Equal(t, testutil.Err(first.Read(make([]byte, 1))), io.EOF, "what comes of the first dial")
	select {
	case h.far = <-fars:
	case <-time.After(20 * time.Second):
		t.Fatal("the second attempt was not dialed")
	}
	defer h.far.Close()
	h.passes(t, st)
}

// A dial that is struck is asked for again as long as its time lasts; another
// failure is its outcome.
func TestStruckDialIsRepeated(t *testing.T) {
	const patience = 10 * time.Second
	refused := &tunnel.DialError{Failure: tunnel.FailRefused}
	for name, c := range map[string]struct {
		outcomes []error // of the attempts; the last is that of all others
		want     tunnel.Failure
		took     time.Duration
	}{
		"not struck":           {[]error{&tunnel.DialError{Failure: tunnel.FailUnavailable}}, tunnel.FailUnavailable, 0},
		"struck, then refused": {[]error{struck, refused}, tunnel.FailRefused, 20 * time.Millisecond},
		"struck for ever":      {[]error{struck}, tunnel.FailUnavailable, patience},
		"agent lost":           {[]error{&tunnel.DialError{Failure: tunnel.FailAgentLost}, refused}, tunnel.FailRefused, 20 * time.Millisecond},
		"no server meanwhile": {[]error{struck, &tunnel.DialError{Failure: tunnel.FailUnavailable}, refused},
			tunnel.FailRefused, 60 * time.Millisecond},
		"no agent meanwhile": {[]error{struck, &tunnel.DialError{Failure: tunnel.FailNoAgent}, refused},
			tunnel.FailRefused, 60 * time.Millisecond},
		"no agent behind the last of many": {append(slices.Repeat([]error{struck}, 20), &tunnel.DialError{Failure: tunnel.FailNoAgent}, refused),
			tunnel.FailRefused, 4550 * time.Millisecond},
		"no agent any more":       {[]error{struck, &tunnel.DialError{Failure: tunnel.FailNoAgent}}, tunnel.FailNoAgent, 3050 * time.Millisecond},
		"no agent from the first": {[]error{&tunnel.DialError{Failure: tunnel.FailNoAgent}}, tunnel.FailNoAgent, 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			ends := resume.New(resume.Options{Window: time.Minute})
			defer ends.Wait()
			defer ends.Close()
			var token [16]byte
			asked := uint32(0)
			dialer := ends.Dialer(tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
				testutil.Holds(t, f.Resume.Attempt == asked && (asked <= 0 || f.Resume.Token == token),
					"attempt %d is called %d", asked, f.Resume.Attempt)
				token = f.Resume.Token
				asked++
				return nil, c.outcomes[min(int(asked), len(c.outcomes))-1]
			}))
			ctx := testutil.ContextFor(t, patience)
			began := time.Now()
			_, err := dialer.Dial(ctx, tunnel.NewFlow("tcp", "dest:1"))
			testutil.Equal(t, tunnel.FailureOf(err), c.want, "the failure")
			testutil.Equal(t, time.Since(began), c.took, "the time that it took")
		})
	}
}

// An opener lets the acceptor hear at once that it has the connection, where that
// may have been there before.
func TestRepeatedDialIsAcknowledged(t *testing.T) {
	w := &world{t: t, serve: make(grab, 1)}
	w.begin(1, time.Minute)
	acks := make(chan uint64, 10)
	c, err := w.opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Resume.Attempt == 0 {
			return nil, struck
		}
		return overheard{acknowledges: func(a link.Ack) { acks <- a.Offset }}.by(w.Dial(ctx, f))
	})).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
	testutil.NoError(t, err)
	defer func() { _ = c.Reset(nil) }()
	select {
	case offset := <-acks:
		testutil.Equal(t, offset, 0, "what it acknowledges")
	default:
		t.Error("it acknowledges nothing")
	}
}

// A dial, and the first byte behind it, outlive a link that is cut at any byte of
// them, on either leg and in either direction, if there is another soon: the dial
// does not fail, and of all its attempts one connection is left.
func TestDialsOutliveCutsAtEveryByte(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 10
	}
	for which, leg := range map[bool]string{toOpener: "opener's", toAgent: "agent's"} {
		for to, from := range []string{"server", "end"} {
			at := 0
			for cut := true; cut; at += step {
				synctest.Test(t, func(t *testing.T) { cut = cutDial(t, which, to, at) })
				testutil.Requires(t, !t.Failed(),
					"the %s link was cut at byte %d from the %s", leg, at, from)
			}
			t.Logf("the %s link, from the %s: every %d. of %d bytes", leg, from, step, at)
		}
	}
}

// cutDial has one of the links tear behind so many bytes to one of its ends, and reports whether
// there were so many.
func cutDial(t *testing.T, which bool, to, at int) (cut bool) {
	var dests atomic.Int32
	w := &world{t: t, wire: wires}
	w.serve = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		dests.Add(1)
		w.wg.Go(func() {
			defer dests.Add(-1)
			defer far.Close()
			_, _ = io.Copy(far, far)
		})
		return tunnel.Wrap(near), nil
	})}
	w.begin(1, time.Minute)
	only := w.servers[0]
	var relinking sync.WaitGroup
	defer relinking.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	near, far := only.near.a, only.far.b
	relinking.Go(func() { relinks(ctx, near, func() { only.relink(toOpener) }) })
	relinking.Go(func() { relinks(ctx, far, func() { only.relink(toAgent) }) })
	synctest.Wait()
	torn := only.get(which).wire
	torn.tear(to, at)

	c, err := w.opener.Dialer(tunnel.DialerFunc(only.dialNear)).Dial(ctx, tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Error(err)
		return false
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	testutil.Succeeds(t, testutil.Err(c.Write([]byte("x"))), "the write")
	testutil.Succeeds(t, testutil.Err(io.ReadFull(c, make([]byte, 1))), "the echo")
	time.Sleep(time.Second)
	testutil.Equal(t, w.agent.Len(), 1, "connections at the agent")
	testutil.Equal(t, dests.Load(), 1, "at the destination")
	cut = torn.tore()
	_ = c.Close()
	time.Sleep(time.Second)
	testutil.Equal(t, w.agent.Len(), 0, "connections left at the agent")
	testutil.Equal(t, dests.Load(), 0, "left at the destination")
	return cut
}

// relinks makes another link soon after ses is lost.
func relinks(ctx context.Context, ses *link.Session, again func()) {
	select {
	case <-ctx.Done():
		return
	case <-ses.Done():
	}
	time.Sleep(50 * time.Millisecond)
	if ctx.Err() == nil {
		again()
	}
}

// dialNear dials by the server's link, whose loss strikes a dial.
func (s *server) dialNear(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return s.get(toOpener).a.Dial(ctx, f)
}
