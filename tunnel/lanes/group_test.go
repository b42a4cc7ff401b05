package lanes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// sink dials a place that takes everything, echo:1, hangs:1, which never answers, or full:1, for
// which there is no room.
var sink = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	switch f.Address {
	case "hangs:1":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "full:1":
		return nil, &tunnel.DialError{Failure: tunnel.FailExhausted}
	}
	near, far := net.Pipe()
	to := io.Discard
	if f.Address == "echo:1" {
		to = far
	}
	go func() { _, _ = io.Copy(to, far); _ = far.Close() }()
	return tunnel.Wrap(near), nil
})

// rig is a peer whose links carry connections to sink.
type rig struct {
	t     *testing.T
	serve tunnel.Handler // in place of that, if set
	mu    sync.Mutex
	far   []*link.Session // the peer's ends, in the order they were made
}

// newGroup is a group of so many lanes, and its rig. It dials by the rig, if opt has
// it dial and does not say how.
func newGroup(t *testing.T, lanes int, opt Options) (*rig, *Group) {
	t.Helper()
	r := &rig{t: t}
	if opt.Max > 1 && opt.Dial == nil {
		opt.Dial = func(context.Context) (*link.Session, error) { return r.link(), nil }
	}
	g := New(r.link(), opt)
	t.Cleanup(func() {
		_ = g.Close()
		r.close()
	})
	for range lanes - 1 {
		testutil.Equal(t, g.Add(r.link()), true, "a lane was taken in")
	}
	return r, g
}

// withGroup runs test with a group of so many lanes, in fake time.
func withGroup(t *testing.T, lanes int, opt Options, test func(t *testing.T, r *rig, g *Group)) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGroup(t, lanes, opt)
		test(t, r, g)
	})
}

// wantLanes wants g to have so many lanes at this moment.
func wantLanes(t *testing.T, g *Group, want int, when string) {
	t.Helper()
	n := len(g.Sessions())
	testutil.Requires(t, n == want, "%d lanes %s, want %d", n, when, want)
}

// link makes one.
func (r *rig) link() *link.Session { return r.linkTo("x") }

// linkTo makes one to a peer that goes by id.
func (r *rig) linkTo(id string) *link.Session {
	r.t.Helper()
	a, b := net.Pipe()
	hello := link.Hello{Role: link.RoleServer, ID: id, Features: []string{link.FeatureLanes, link.FeatureResume}}
	serve := r.serve
	if serve == nil {
		serve = &tunnel.Forwarder{Dialer: sink}
	}
	accepted := make(chan *link.Session)
	go func() {
		ses, err := link.Accept(context.Background(), b, link.Config{Hello: hello, Handler: serve})
		testutil.Succeeds(r.t, err, "the peer's end")
		accepted <- ses
	}()
	near := testutil.Must(link.Connect(context.Background(), a, link.Config{Hello: hello}))(r.t)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.far = append(r.far, <-accepted)
	return near
}

func (r *rig) close() {
	for _, ses := range r.far {
		_ = ses.Close()
	}
}

// open opens a stream on g and returns which lane it is on.
func (r *rig) open(g *Group) (tunnel.Conn, int) {
	r.t.Helper()
	c := testutil.Must(g.Dial(context.Background(), tunnel.NewFlow("tcp", "example.test:80")))(r.t)
	for i, ses := range g.Sessions() {
		if c.(*link.Stream).Session() == ses {
			return c, i
		}
	}
	r.t.Fatal("it is on no lane")
	return nil, 0
}

// lane opens a stream, and returns the number of its lane.
func (r *rig) lane(g *Group) int {
	r.t.Helper()
	_, at := r.open(g)
	return at
}

// Between two samples, streams go on all lanes alike; after that, they avoid lanes with
// bulk.
func TestStreamsAvoidBulk(t *testing.T) {
	withGroup(t, 3, Options{}, func(t *testing.T, r *rig, g *Group) {
		synctest.Wait() // for the first look, which counts from there on
		bulk, at := r.open(g)
		testutil.Equal(t, at, 0, "the first stream's lane")
		for i, want := range []int{1, 2, 0, 1} {
			testutil.Equal(t, r.lane(g), want, "the lane of stream %d of the same second", i+2)
		}
		testutil.Must(bulk.Write(make([]byte, bulkBytes)))(t)
		time.Sleep(sampleEvery + 1)
		testutil.Equal(t, r.lane(g), 1, "a stream's lane beside bulk on lane 0")
		time.Sleep(2 * sampleEvery)
		testutil.Equal(t, r.lane(g), 0, "a stream's lane after bulk")
	})
}

// A group lasts until its last lane has ended, and goes on without the first.
func TestLanesThatEnd(t *testing.T) {
	withGroup(t, 2, Options{}, func(t *testing.T, r *rig, g *Group) {
		c, _ := r.open(g)
		n := g.Stats()
		testutil.Equal(t, fmt.Sprint(n.Lanes, n.Opened, n.Streams), "2 1 1", "lanes, streams opened and those there")
		_ = r.far[0].Close()
		synctest.Wait()
		testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Read(make([]byte, 1)))), tunnel.CodeLost, "a stream of it reads")
		testutil.NoError(t, g.Err())
		testutil.Equal(t, r.lane(g), 0, "a stream's lane, of one")
		n = g.Stats()
		testutil.Equal(t, fmt.Sprint(n.Lanes, n.Opened, n.Streams), "1 2 1", "lanes, streams opened and those there")
		_ = r.far[1].CloseWith(link.GoAwayShutdown, "bye")
		<-g.Done()
		var bye *link.GoAwayError
		testutil.Holds(t, errors.As(g.Err(), &bye) && bye.Text == "bye", "the group ended with %v", g.Err())
		err := testutil.Err(g.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailUnavailable, "a dial afterwards")
		late := r.link()
		defer late.Close()
		testutil.Equal(t, g.Add(late), false, "a group that has ended takes a lane in")
	})
}

// A group whose last lane has ended takes no other link, even before it has removed that
// lane: Err has told the end, so Done must follow.
func TestGroupStaysEnded(t *testing.T) {
	r := &rig{t: t}
	first, late := r.link(), r.link()
	g := New(first, Options{})
	defer r.close()
	defer g.Close()
	defer late.Close()
	g.mu.Lock() // keeps the lane from being taken out
	_ = r.far[0].Close()
	<-first.Done()
	takes, kept := g.takesLocked(), len(g.lanes)
	g.mu.Unlock()
	testutil.Equal(t, takes, false, "a group whose lanes have all ended takes another")
	testutil.Equal(t, kept, 1, "lanes")
	testutil.Requires(t, g.Err() != nil && !g.Add(late), "a group that had ended has come back")
	<-g.Done()
}

// A lane whose peer wants nothing new gets nothing; a group drains when all do.
func TestLanesThatDrain(t *testing.T) {
	withGroup(t, 2, Options{}, func(t *testing.T, r *rig, g *Group) {
		r.far[0].Drain()
		synctest.Wait()
		for range 3 {
			testutil.Equal(t, r.lane(g), 1, "a stream's lane, where lane 0 drains")
		}
		testutil.Equal(t, g.Drains().Happened(), false, "one of two lanes drains, and the group does")
		r.far[1].Drain()
		<-g.Drains().Done()
		r.open(g) // is served if possible
		g.Drain()
		synctest.Wait()
		for i, far := range r.far {
			testutil.Equal(t, far.Drains().Happened(), true, "lane %d was told to drain", i)
		}
	})
}

// lossy has each look at a group find segments lost, on a line of 50 ms.
func lossy(g *Group) { lossyAt(g, link.Line{RTT: 50 * time.Millisecond}) }

// lossyAt has each look at a group find segments lost, on such a line.
func lossyAt(g *Group, line link.Line) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.line = func(*link.Session) link.Line {
		line.Lost++
		return line
	}
}

// carry makes c carry as much as bulk does.
func carry(t *testing.T, c tunnel.Conn) {
	t.Helper()
	testutil.Must(c.Write(make([]byte, bulkBytes)))(t)
}

// whisper makes c carry less than bulk does.
func whisper(t *testing.T, c tunnel.Conn) {
	t.Helper()
	testutil.Must(c.Write([]byte{1}))(t)
}

// wake has c carry enough to have its lane looked at.
func (r *rig) wake(c tunnel.Conn) {
	r.t.Helper()
	for range wakeBytes / bulkBytes {
		carry(r.t, c)
	}
	synctest.Wait()
}

// crowd has bulk hold up a small message on a lossy line, for so many looks.
func (r *rig) crowd(g *Group, looks int) {
	r.t.Helper()
	lossy(g)
	bulk, _ := r.open(g)
	r.wake(bulk)
	time.Sleep(sampleEvery / 2) // not at the instant of a look
	small, _ := r.open(g)
	for range looks {
		carry(r.t, bulk)
		whisper(r.t, small)
		time.Sleep(sampleEvery)
	}
}

// Bulk that holds up no other stream stays alone on its lane.
func TestBulkAloneHasOneLane(t *testing.T) {
	withGroup(t, 1, Options{Max: 3}, func(t *testing.T, r *rig, g *Group) {
		lossy(g)
		bulk, _ := r.open(g)
		small, _ := r.open(g)
		r.wake(bulk)
		time.Sleep(sampleEvery / 2) // not at the instant of a look
		for range 10 {
			carry(t, bulk)
			time.Sleep(sampleEvery)
		}
		wantLanes(t, g, 1, "for bulk alone")
		carry(t, bulk)
		whisper(t, small)
		time.Sleep(sampleEvery)
		wantLanes(t, g, 2, "for bulk and a small message")
	})
}

// full has a group find its lanes full, with what bulk carries in these tests.
func full(g *Group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.line = func(*link.Session) link.Line {
		return link.Line{RTT: sampleEvery * (fullTrip / (2 * bulkBytes))}
	}
}

// A lane is not looked at before it has carried something, and not any more after it.
func TestIdleLaneIsLeftAlone(t *testing.T) {
	withGroup(t, 1, Options{Max: 3}, func(t *testing.T, r *rig, g *Group) {
		var looks atomic.Int64
		g.mu.Lock()
		g.line = func(*link.Session) link.Line { looks.Add(1); return link.Line{} }
		g.mu.Unlock()
		c, _ := r.open(g)
		whisper(t, c)
		time.Sleep(time.Minute)
		testutil.Equal(t, looks.Load(), 0, "looks at a lane that carried a byte")
		for range wakeBytes / bulkBytes {
			carry(t, c)
		}
		time.Sleep(time.Minute)
		testutil.Between(t, looks.Load(), 1, 3, "looks at a lane that carried for an instant")
		before := looks.Load()
		for range wakeBytes / bulkBytes {
			carry(t, c)
		}
		time.Sleep(time.Minute)
		testutil.AtLeast(t, looks.Load(), before+1, "looks at it again")
	})
}

// A look that comes late, after lanes were added, takes the rate of all that time.
func TestLateSample(t *testing.T) {
	withGroup(t, 1, Options{Max: 3}, func(t *testing.T, r *rig, g *Group) {
		c, _ := r.open(g)
		g.sample()
		for _, looks := range []uint64{1, 8} { // which is too little to be woken by
			for range looks {
				carry(t, c)
			}
			time.Sleep(time.Duration(looks) * sampleEvery)
			s, _ := g.sample()
			testutil.Equal(t, s.rate, 2*bulkBytes, "bytes per second after the time of %d looks", looks)
		}
	})
}

// A lane that has become the only one again is watched like the first.
func TestLastLaneIsMonitored(t *testing.T) {
	withGroup(t, 2, Options{Max: 3}, func(t *testing.T, r *rig, g *Group) {
		_ = r.far[0].Close()
		time.Sleep(time.Minute)
		wantLanes(t, g, 1, "are left")
		r.crowd(g, 5)
		synctest.Wait()
		wantLanes(t, g, 2, "for bulk and a small message")
	})
}

// Lanes are added while bulk streams share one that is full, and dropped by and by.
func TestLanesComeAndGo(t *testing.T) {
	withGroup(t, 1, Options{Max: 3}, func(t *testing.T, r *rig, g *Group) {
		full(g)
		a, _ := r.open(g)
		b, _ := r.open(g)
		r.wake(a)
		time.Sleep(time.Minute)
		r.wake(a)
		time.Sleep(sampleEvery / 2) // so that no look is at the very moment of a write
		wantLanes(t, g, 1, "without bulk")
		for range 3 {
			carry(t, a)
			carry(t, b)
			time.Sleep(sampleEvery)
		}
		synctest.Wait()
		wantLanes(t, g, 3, "for two bulk streams")
		_, at := r.open(g)
		held, second := r.open(g)
		testutil.Holds(t, at != 0 && second != 0, "new streams are on lanes %d and %d, with bulk on 0", at, second)
		time.Sleep(keepFor + 5*time.Second)
		wantLanes(t, g, 3, "while streams are on all")
		_ = held.Close()
		time.Sleep(5 * time.Second)
		wantLanes(t, g, 2, "while streams are on two")
		told := func(far *link.Session) bool { return far.Drains().Happened() }
		testutil.Equal(t, slices.ContainsFunc(r.far, told), true, "the peer was told to leave the lane first")
	})
}

// What cannot be added is tried again, more and more rarely.
func TestLanesThatCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		r, g := newGroup(t, 1, Options{Max: 2, Dial: func(context.Context) (*link.Session, error) {
			tries++
			return nil, errors.New("refused")
		}})
		r.crowd(g, 300)
		testutil.Between(t, tries, 8, 12, "tries within five minutes")
	})
}

// Several lanes that cannot be made together are one attempt, behind which the pause
// doubles once.
func TestLanesThatFailTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g := newGroup(t, 1, Options{Max: MaxLanes, Dial: func(context.Context) (*link.Session, error) {
			return nil, errors.New("refused")
		}})
		for _, want := range []time.Duration{sampleEvery, 2 * sampleEvery, 4 * sampleEvery} {
			g.add(MaxLanes - 1)
			testutil.Equal(t, g.pause, want, "the pause")
		}
		g.added(true, time.Now())
		testutil.Equal(t, g.pause, 0, "the pause after lanes were added")
	})
}

// An attempt to add lanes ends with the group.
func TestLanesThatAreMadeAsTheGroupEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGroup(t, 1, Options{Max: 2, Dial: func(ctx context.Context) (*link.Session, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}})
		began := time.Now()
		go r.close()
		g.add(1)
		testutil.AtMost(t, time.Since(began), addTimeout-1, "time that it took")
	})
}

// What leads to another peer, or to one that does not say who it is, is no lane.
func TestLanesLeadToOnePeer(t *testing.T) {
	for _, id := range []string{"y", ""} {
		synctest.Test(t, func(t *testing.T) {
			r := &rig{t: t}
			g := New(r.linkTo(min(id, "x")), Options{Max: 2, Dial: func(context.Context) (*link.Session, error) { return r.linkTo(id), nil }})
			defer r.close()
			defer g.Close()
			r.crowd(g, 5)
			synctest.Wait()
			testutil.Requires(t, len(r.far) >= 2, "%d links were made", len(r.far))
			testutil.Equal(t, len(g.Sessions()), 1, "lanes")
			testutil.Equal(t, tunnel.Closed(r.far[1].Done()), true, "the link to peer %q has ended", id)
		})
	}
}

// A group is idle once all lanes are.
func TestWaitIdle(t *testing.T) {
	withGroup(t, 2, Options{}, func(t *testing.T, r *rig, g *Group) {
		synctest.Wait() // for the first look, which counts from there on
		a, _ := r.open(g)
		b, at := r.open(g)
		testutil.Equal(t, at, 1, "the second stream's lane")
		short := testutil.ContextFor(t, time.Second)
		testutil.ErrorIs(t, g.WaitIdle(short), context.DeadlineExceeded, "the wait, with two streams")
		time.AfterFunc(time.Second, func() { _ = a.Close() })
		time.AfterFunc(2*time.Second, func() { _ = b.Close() })
		began := time.Now()
		testutil.Succeeds(t, g.WaitIdle(t.Context()), "WaitIdle")
		testutil.Equal(t, time.Since(began), 2*time.Second, "the wait")
	})
}

// A dial that is struck with its lane is made again on another. That of a connection that is to
// outlive it is its opener's to repeat: by the same number it would be taken for a late one.
func TestStruckDial(t *testing.T) {
	for opened, outlives := range map[uint64]*tunnel.Resume{1: {Window: time.Minute}, 2: nil} {
		withGroup(t, 2, Options{}, func(t *testing.T, r *rig, g *Group) {
			f := tunnel.NewFlow("tcp", "hangs:1")
			f.Resume = outlives
			failed := testutil.Later(func() error { return testutil.Err(g.Dial(t.Context(), f)) })
			for _, far := range r.far {
				synctest.Wait()
				if far.Streams() > 0 {
					_ = far.Close()
				}
			}
			testutil.Equal(t, tunnel.LostInFlight(<-failed), true, "it was lost with its last lane")
			testutil.Equal(t, g.Stats().Opened, opened, "streams that were opened for it")
		})
	}
}

// A dial that the peer refuses is its caller's to make elsewhere, not made again on another lane.
func TestRefusedDial(t *testing.T) {
	withGroup(t, 2, Options{}, func(t *testing.T, r *rig, g *Group) {
		_, err := g.Dial(t.Context(), tunnel.NewFlow("tcp", "full:1"))
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailExhausted, "what the peer said")
		testutil.Equal(t, g.Stats().Opened, 1, "streams that were opened for it")
	})
}

// A dial that fails with the last lane returns once the group has ended, so that its caller finds
// the server lost.
func TestStruckDialFailsOnceItsGroupHasEnded(t *testing.T) {
	for range 200 {
		withGroup(t, 1, Options{}, func(t *testing.T, r *rig, g *Group) {
			failed := testutil.Later(func() bool {
				_, err := g.Dial(t.Context(), tunnel.NewFlow("tcp", "hangs:1"))
				return err != nil && tunnel.Closed(g.Done())
			})
			synctest.Wait()
			_ = r.far[0].Close()
			testutil.Holds(t, <-failed, "it lives on")
		})
	}
}

// crowded is a group of one lane with bulk and a small message on a lossy line, whose
// connections outlive their links.
type crowded struct {
	*rig
	g     *Group
	bulk  []tunnel.Conn
	small tunnel.Conn
}

func newCrowded(t *testing.T, bulk int, opt Options) *crowded {
	options := resume.Options{Window: time.Minute, Budget: link.NewBudget(1 << 30)}
	opener, acceptor := resume.New(options), resume.New(options)
	r := &rig{t: t, serve: acceptor.Handler(&tunnel.Forwarder{Dialer: sink})}
	if opt.Max > 1 {
		opt.Dial = func(context.Context) (*link.Session, error) { return r.link(), nil }
	}
	g := New(r.link(), opt)
	t.Cleanup(func() {
		opener.Close()
		acceptor.Close()
		_ = g.Close()
		r.close()
		opener.Wait()
		acceptor.Wait()
	})
	lossy(g)
	c := &crowded{rig: r, g: g}
	dialer := opener.Dialer(g)
	dial := func() tunnel.Conn {
		return testutil.Must(dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
	}
	for range bulk {
		c.bulk = append(c.bulk, dial())
	}
	c.small = dial()
	c.wake(c.bulk[0])
	return c
}

// carry has all carry something for so long.
func (c *crowded) carry(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(firstSample / 4) {
		for _, conn := range c.bulk {
			carry(c.t, conn)
		}
		whisper(c.t, c.small)
	}
	synctest.Wait()
}

// join has the peer add so many lanes.
func (c *crowded) join(lanes int) {
	c.t.Helper()
	for range lanes {
		testutil.Equal(c.t, c.g.Add(c.link()), true, "a lane was taken in")
	}
}

// streams are how many each lane has, those of the others sorted.
func (c *crowded) streams() string {
	var n []int
	for _, ses := range c.g.Sessions() {
		n = append(n, ses.Streams())
	}
	slices.Sort(n[1:])
	return fmt.Sprint(n)
}

// As soon as a lane has joined the only one, bulk leaves that to the small messages: at
// once where this side has added it, and after firstSample where the peer has.
func TestBulkMovesAsALaneJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 1, Options{Max: 2})
		for len(c.g.Sessions()) < 2 {
			c.carry(firstSample / 4)
		}
		testutil.Equal(t, c.streams(), "[1 1]", "streams by lane, with one added")
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 1, Options{})
		c.join(1)
		c.carry(firstSample + 1)
		testutil.Equal(t, c.streams(), "[1 1]", "streams by lane, with one that has joined")
	})
}

// Bulk spreads over lanes that join when it has left the first.
func TestBulkSpreadsOverLateLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 5, Options{})
		c.join(1)
		c.carry(2 * firstSample)
		testutil.Equal(t, c.streams(), "[1 5]", "streams by lane, with one that has joined")
		c.join(3)
		c.carry(2 * sampleEvery)
		testutil.Equal(t, c.streams(), "[1 1 1 1 2]", "streams by lane, with three more")
	})
	synctest.Test(t, func(t *testing.T) { // first two for a lossy line, then more, since a lane is full
		c := newCrowded(t, 5, Options{Max: 4})
		c.carry(6 * sampleEvery)
		testutil.Equal(t, c.streams(), "[1 5]", "streams by lane of a lossy line")
		lossyAt(c.g, link.Line{RTT: time.Hour})
		c.carry(4 * sampleEvery)
		testutil.Equal(t, c.streams(), "[1 1 2 2]", "streams by lane of a full line")
	})
}
