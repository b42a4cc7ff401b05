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
	// Max bounds the lanes; with 1 or less, the first link is the only one.
	Max int

	// Dial makes another link in the same group, or fails and leaves nothing
	// behind. The Group closes a link that leads to another peer, as by a load
	// balancer. nil: the peer adds lanes, by Add.
	Dial func(ctx context.Context) (*link.Session, error)

	id   string // the Group's in HELLO
	lost *Lost  // names the Group once its last lane is lost; nil: the peer makes the links
}

// Group is one or more links to one peer that count as one. It is a tunnel.Dialer that
// chooses a lane for each stream. Its methods may be called from any goroutine.
type Group struct {
	opt  Options
	line func(*link.Session) link.Line
	bind func(ses *link.Session, rate uint64) // bounds what it sends
	wg   sync.WaitGroup                       // the monitor, and lanes until they are removed

	ends, drains tunnel.Event // the last lane has ended; the peer wants nothing new on any

	mu       sync.Mutex
	lanes    []*lane    // in the order they joined; empty once all have ended
	last     *lane      // the lane that ended last, once all have
	over     link.Stats // counters of lanes that have ended
	drained  bool       // Drain was called
	closed   bool
	monitors bool      // the monitor runs
	sampled  time.Time // when the last sample was taken; owned by the monitor
	pacing   pacing    // owned by the monitor
	plan     plan
	pause    time.Duration // from a failed attempt to add lanes to the next
	notUntil time.Time     // when the next attempt may be made
}

// lane is one link of a Group. Group.mu guards it, but for moved, sent, lost and delivered,
// which only the monitor uses.
type lane struct {
	ses    *link.Session
	bulk   int    // streams that were bulk at the last sample
	placed int    // streams placed since then that stay, or are bulk
	moved  uint64 // payload bytes carried by the last sample
	sent   uint64 // and those of them that went from here
	lost   uint64 // segments lost by the last sample

	delivered uint32 // segments delivered by the last look of pacing
	drops     bool   // this side wants no new streams on it, and closes it once it is idle
}

// drains reports whether the peer wants no new streams on the lane.
func (l *lane) drains() bool { return l.ses.Drains().Happened() }

// A Greeting makes a link whose HELLO names the Group that it belongs to.
type Greeting func(ctx context.Context, group string) (*link.Session, error)

// Connect makes a Group of up to n links: one by first, and others by next. It is
// added to lost if that fails, and once the last lane is lost.
func Connect(ctx context.Context, lost *Lost, n int, first, next Greeting) (*Group, error) {
	var random [link.GroupSize]byte
	_, _ = rand.Read(random[:])
	id := string(random[:])
	ses, err := first(ctx, id)
	if err != nil {
		lost.add(id) // the peer may have taken the link, and not hear that it is closed
		return nil, err
	}
	dial := func(ctx context.Context) (*link.Session, error) { return next(ctx, id) }
	return New(ses, Options{Max: n, Dial: dial, id: id, lost: lost}), nil
}

// New returns a Group of one link, to which others can be added. It lasts until its last
// lane has ended, or until Close.
func New(first *link.Session, opt Options) *Group {
	g := &Group{opt: opt, line: (*link.Session).Line, bind: (*link.Session).Pace, plan: plan{max: min(opt.Max, MaxLanes), cores: runtime.GOMAXPROCS(0)}}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addLocked(first)
	return g
}

// Add takes in another link to the same peer, and reports whether it did. It takes none
// once the last lane has ended, nor more than twice MaxLanes, which leaves room for
// lanes that drain.
func (g *Group) Add(ses *link.Session) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.takesLocked() {
		return false
	}
	g.addLocked(ses)
	return true
}

// takesLocked reports whether another lane can join. Once all have ended, none can, even
// before they are removed, because Err is final by then.
func (g *Group) takesLocked() bool {
	return !g.closed && len(g.lanes) < 2*MaxLanes && g.livesLocked()
}

// livesLocked reports whether a lane has not ended.
func (g *Group) livesLocked() bool {
	return slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.ses.Ends().Happened() })
}

func (g *Group) addLocked(ses *link.Session) {
	l := &lane{ses: ses}
	g.lanes = append(g.lanes, l)
	if len(g.lanes) > 1 {
		g.startMonitor()
	} else if g.grows() {
		ses.WakeAfter(wakeBytes, g.wake)
	}
	// Nothing runs for a lane that does nothing: a server has thousands.
	told := ses.Drains().Then(g.noteDrain)
	g.wg.Add(1)
	ses.Ends().Then(func() {
		defer g.wg.Done()
		told()
		g.release(l)
	})
	if g.drained {
		ses.Drain()
	}
}

// release removes a lane that has ended, and frees it.
func (g *Group) release(l *lane) {
	for _, rest := range g.remove(l) {
		_ = rest.ses.Close()
	}
	_ = l.ses.Close() // frees what a link that ended by itself still holds
}

// wake starts the monitor, since the only lane has carried much.
func (g *Group) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.startMonitor()
}

// noteDrain has drains happen once the peer wants no new streams on all lanes.
func (g *Group) noteDrain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteDrainLocked()
}

func (g *Group) noteDrainLocked() {
	if len(g.lanes) > 0 && !slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.drains() }) {
		g.drains.Happen()
	}
}

// remove removes a lane that has ended. If only lanes that are being dropped are left, it
// returns them for closing: the peer was told to use none of them, and would take the
// group for one that goes.
func (g *Group) remove(l *lane) (rest []*lane) {
	stats := l.ses.Stats()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over.Count(stats)
	g.noteDrainLocked() // also where the lane has drained and ended at once
	g.lanes = slices.DeleteFunc(g.lanes, func(other *lane) bool { return other == l })
	g.noteDrainLocked()
	switch {
	case len(g.lanes) == 0:
		g.last = l
		if g.opt.lost != nil && !g.closed { // before others hear of the end, and make another link
			g.opt.lost.add(g.opt.id)
		}
		g.ends.Happen()
	case !slices.ContainsFunc(g.lanes, func(l *lane) bool { return !l.drops }):
		return slices.Clone(g.lanes)
	}
	return nil
}
