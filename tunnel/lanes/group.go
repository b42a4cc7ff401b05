package lanes

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Options say how a Group is kept.
type Options struct {
	// Max is how many lanes there are at most, for which Dial makes more; 1 or
	// less: only the first.
	Max int

	// Dial makes another link in the same group, or fails. It leaves nothing
	// behind then. One to another peer, where a load balancer leads there, is
	// closed. nil: the peer adds lanes, by Add.
	Dial func(ctx context.Context) (*link.Session, error)
}

// Group is one or more links to one peer that count as one. It is a
// tunnel.Dialer that opens each stream on the lane that suits it. Its methods
// may be called from any goroutine.
type Group struct {
	opt    Options
	line   func(*link.Session) link.Line
	ctx    context.Context // ends with the group
	cancel context.CancelFunc
	wg     sync.WaitGroup

	done, draining chan struct{}

	mu       sync.Mutex
	lanes    []*lane    // in the order they joined; not empty until done
	last     *lane      // to end
	over     link.Stats // counters of lanes that have ended
	drains   bool       // draining is closed
	drained  bool       // Drain was called
	closed   bool
	looking  bool // a look is to come
	plan     plan
	pause    time.Duration // before the next attempt to add a lane, after one failed
	notUntil time.Time     // is it made
}

// lane is one link of a Group. Group.mu guards it.
type lane struct {
	ses    *link.Session
	bulk   int    // streams that carried much when it was last looked at
	placed int    // streams that were put on it since, and are there to stay or as bulk
	moved  uint64 // bytes, then
	lost   uint64 // segments, then
	drains bool   // the peer asked for nothing new on it
	drops  bool   // this side did
}

const (
	// lookEvery is how often lanes are looked at.
	lookEvery = time.Second

	// bulkBytes is what a stream carries between two looks that is bulk.
	bulkBytes = 128 << 10

	// dialTimeout bounds an attempt to add a lane.
	dialTimeout = 10 * time.Second

	// longestPause bounds the wait after such an attempt failed. It doubles, from
	// one look on.
	longestPause = time.Minute
)

// NewID is what the links of a new Group say of it in HELLO, where there may be
// more than one.
func NewID() string {
	var id [link.GroupSize]byte
	_, _ = rand.Read(id[:])
	return string(id[:])
}

// New makes a Group of a link; more can be added. Unless it is closed, it lasts
// until its last lane has ended.
func New(first *link.Session, opt Options) *Group {
	g := &Group{opt: opt, line: (*link.Session).Line, done: make(chan struct{}), draining: make(chan struct{}), plan: plan{max: min(opt.Max, MaxLanes)}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addLocked(first)
	return g
}

// Add takes in another link to the same peer, and says whether it did: not once
// the last has ended, nor more than twice MaxLanes, which leaves room for lanes
// on their way out.
func (g *Group) Add(ses *link.Session) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.takesLocked() {
		return false
	}
	g.addLocked(ses)
	return true
}

// takesLocked says whether another lane can join. Once all have ended, none can,
// though they may not have been taken out yet: Err has said that Done is about to be
// closed.
func (g *Group) takesLocked() bool {
	lives := func(l *lane) bool { return !tunnel.Closed(l.ses.Done()) }
	return !g.closed && len(g.lanes) < 2*MaxLanes && slices.ContainsFunc(g.lanes, lives)
}

func (g *Group) addLocked(ses *link.Session) {
	l := &lane{ses: ses}
	g.lanes = append(g.lanes, l)
	g.wg.Go(func() { g.watch(l) })
	if !g.looking && g.worthLooking() {
		g.looking = true
		g.wg.Go(g.look)
	}
	if g.drained {
		ses.Drain()
	}
}

// worthLooking says whether there is anything to decide.
func (g *Group) worthLooking() bool {
	return len(g.lanes) > 1 || g.opt.Dial != nil && g.plan.max > 1 && len(g.lanes) == 1 && g.lanes[0].ses.Lanes()
}

// watch sees to a lane until it has ended.
func (g *Group) watch(l *lane) {
	select {
	case <-l.ses.Draining():
		g.mu.Lock()
		g.drainsLocked(l)
		g.mu.Unlock()
	case <-l.ses.Done():
	}
	<-l.ses.Done()
	for _, rest := range g.ended(l) {
		_ = rest.ses.Close()
	}
	_ = l.ses.Close() // frees what a link that ended by itself still holds
}

// drainsLocked notes that the peer wants nothing new on l, if so, and closes
// draining once that is so of all.
func (g *Group) drainsLocked(l *lane) {
	if tunnel.Closed(l.ses.Draining()) {
		l.drains = true
	}
	if !g.drains && len(g.lanes) > 0 && !slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.drains }) {
		g.drains = true
		close(g.draining)
	}
}

// ended takes out a lane that has ended. Where all that are left were to be
// dropped, it returns these: the peer, who was told, would take the group for one
// that goes.
func (g *Group) ended(l *lane) (rest []*lane) {
	stats := l.ses.Stats()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over.Count(stats)
	g.drainsLocked(l) // also where it has drained and ended at once
	g.lanes = slices.DeleteFunc(g.lanes, func(other *lane) bool { return other == l })
	g.drainsLocked(l)
	switch {
	case len(g.lanes) == 0:
		g.last = l
		g.cancel()
		close(g.done)
	case !slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.drops }):
		return slices.Clone(g.lanes)
	}
	return nil
}

// look looks at the lanes as long as there is anything to decide.
func (g *Group) look() {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	g.sample()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-ticker.C:
		}
		s, first := g.sample()
		g.clearFirst(first)
		add, drop, on := g.decide(time.Now(), s)
		if !on {
			return
		}
		for _, l := range drop {
			g.wg.Go(func() { _ = l.ses.Close() })
		}
		g.dial(add)
	}
}

// sample looks at every lane, and lists the bulk of the first that holds up others
// there. The first look at a stream after a quiet time sees all that it carried
// meanwhile.
func (g *Group) sample() (s sample, first []*link.Stream) {
	g.mu.Lock()
	lanes, lineOf := slices.Clone(g.lanes), g.line
	g.mu.Unlock()
	for i, l := range lanes {
		moved, line := l.ses.Moved(), lineOf(l.ses)
		var bulk []*link.Stream
		small := 0
		if moved-l.moved >= bulkBytes {
			bulk, small = l.ses.Bulk(bulkBytes)
		}
		if i == 0 && len(bulk) > 0 && small > 0 {
			first, s.held = bulk, true
		}
		s.bulk += len(bulk)
		s.lost = s.lost || line.Lost > l.lost
		if s.rtt == 0 || line.RTT > 0 && line.RTT < s.rtt {
			s.rtt = line.RTT
		}
		l.moved, l.lost = moved, line.Lost // the looks' own
		g.mu.Lock()
		l.bulk, l.placed = len(bulk), 0
		g.mu.Unlock()
	}
	return s, first
}

// clearFirst moves bulk from the first lane to others, if there are any.
func (g *Group) clearFirst(bulk []*link.Stream) {
	g.mu.Lock()
	others := slices.ContainsFunc(g.lanes[min(1, len(g.lanes)):], func(l *lane) bool { return !l.drains && !l.drops })
	g.mu.Unlock()
	moving := 0
	for _, st := range bulk {
		if others && st.AskMove() {
			moving++
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lanes) > 0 {
		g.lanes[0].bulk -= min(moving, g.lanes[0].bulk)
	}
}

// decide says how many lanes to add and which to close now, and whether there is
// anything more to look at.
func (g *Group) decide(now time.Time, s sample) (add int, drop []*lane, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.looking = g.worthLooking() && !g.closed; !g.looking {
		return 0, nil, false
	}
	if g.opt.Dial == nil || g.drained || g.drains {
		return 0, nil, true
	}
	want, have := g.plan.look(now, s), 0
	for _, l := range g.lanes {
		switch {
		case !l.drops:
			have++
		case l.ses.Streams() == 0:
			drop = append(drop, l)
		}
	}
	for i := len(g.lanes) - 1; i > 0 && have > want; i-- {
		// Its streams, if any, cannot be moved; it stays as long as they do.
		if l := g.lanes[i]; !l.drops && l.ses.Streams() == 0 {
			l.drops = true
			l.ses.Drain()
			have--
		}
	}
	if now.After(g.notUntil) {
		add = want - have
	}
	return add, drop, true
}

// dial adds n lanes, all at once.
func (g *Group) dial(n int) {
	if n <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, dialTimeout)
	defer cancel()
	var dials sync.WaitGroup
	defer dials.Wait()
	for range n {
		dials.Go(func() {
			g.dialed(g.dialOne(ctx), time.Now())
		})
	}
}

// errElsewhere is why a link became no lane.
var errElsewhere = errors.New("another server answers at this address")

// dialOne adds a lane.
func (g *Group) dialOne(ctx context.Context) error {
	ses, err := g.opt.Dial(ctx)
	switch {
	case err != nil:
		return err
	case ses.Peer().ID == "" || ses.Peer().ID != g.Peer().ID:
		_ = ses.CloseWith(link.GoAwayDuplicate, "")
		return errElsewhere
	case !g.Add(ses):
		_ = ses.Close()
	}
	return nil
}

// dialed takes in how an attempt ended.
func (g *Group) dialed(err error, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.pause = 0
		return
	}
	g.pause = min(max(2*g.pause, lookEvery), longestPause)
	g.notUntil = now.Add(g.pause)
}

// Dial implements tunnel.Dialer. A dial whose lane ends before it was answered
// is made again on another, unless it is its opener's to repeat.
func (g *Group) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	for {
		l, others := g.pick(f)
		c, err := l.ses.Dial(ctx, f)
		if err == nil || !others || f.Resume != nil || ctx.Err() != nil || !tunnel.Closed(l.ses.Done()) || !tunnel.FailureOf(err).Elsewhere() {
			return c, err
		}
	}
}

// pick is the lane for a new stream; the last one that there was if all have
// ended.
func (g *Group) pick(f *tunnel.Flow) (l *lane, others bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	loads := make([]load, len(g.lanes))
	for i, l := range g.lanes {
		loads[i] = load{bulk: l.bulk + l.placed, gone: tunnel.Closed(l.ses.Done()), leaves: l.drains || l.drops}
	}
	i, moves := place(loads), f.Resume != nil && f.Resume.Bulk
	if moves {
		i = placeBulk(loads)
	}
	switch {
	case i >= 0:
		if moves || f.Resume == nil {
			g.lanes[i].placed++
		}
		return g.lanes[i], len(g.lanes) > 1
	case len(g.lanes) > 0:
		return g.lanes[0], false
	default:
		return g.last, false
	}
}
