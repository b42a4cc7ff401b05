package lanes

import (
	"context"
	"crypto/rand"
	"runtime"
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
	ctx    context.Context // of looks; ends with the group, or as it is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup // looks, and lanes until they have ended and were seen to

	life, drains    context.Context // end with the last lane, and once the peer wants nothing new on any
	end, startDrain context.CancelFunc

	mu       sync.Mutex
	lanes    []*lane    // in the order they joined; not empty until done
	last     *lane      // to end
	over     link.Stats // counters of lanes that have ended
	drained  bool       // Drain was called
	closed   bool
	looking  bool      // a look is to come
	looked   time.Time // when the last look was; the looks' own
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
	g := &Group{opt: opt, line: (*link.Session).Line, plan: plan{max: min(opt.Max, MaxLanes), cores: runtime.GOMAXPROCS(0)}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.life, g.end = context.WithCancel(context.Background())
	g.drains, g.startDrain = context.WithCancel(context.Background())
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
	if len(g.lanes) > 1 {
		g.startLooking()
	} else if g.grows() {
		ses.WakeAfter(wakeBytes, g.wake)
	}
	// Nothing runs for a lane that does nothing: a server has thousands.
	told := tunnel.After(ses.Drains(), func() { g.drainsOn(l) })
	g.wg.Add(1)
	context.AfterFunc(ses.Life(), func() {
		defer g.wg.Done()
		told()
		g.leave(l)
	})
	if g.drained {
		ses.Drain()
	}
}

// leave sees to a lane that has ended.
func (g *Group) leave(l *lane) {
	for _, rest := range g.ended(l) {
		_ = rest.ses.Close()
	}
	_ = l.ses.Close() // frees what a link that ended by itself still holds
}

// wake has the lanes looked at: one that is alone has carried much.
func (g *Group) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.startLooking()
}

// drainsOn notes that the peer wants nothing new on l.
func (g *Group) drainsOn(l *lane) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drainsLocked(l)
}

// drainsLocked notes that the peer wants nothing new on l, if so, and ends drains once
// that is so of all.
func (g *Group) drainsLocked(l *lane) {
	if l.ses.Drains().Err() != nil {
		l.drains = true
	}
	if len(g.lanes) > 0 && !slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.drains }) {
		g.startDrain()
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
		g.end()
	case !slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.drops }):
		return slices.Clone(g.lanes)
	}
	return nil
}
