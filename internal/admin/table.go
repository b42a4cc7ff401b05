package admin

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

const (
	// sampleEvery is how often connections are looked at. A stall goes unseen
	// for at most twice as long, so a page that polls shows it within 2 s. A
	// sample of 10,000 connections takes a few milliseconds.
	sampleEvery = 400 * time.Millisecond

	// smoothing is the weight of the newest sample in a connection's rates, so
	// that they cover about the last two seconds.
	smoothing = 0.25

	// patience is how long a client must have waited before its giving up
	// counts as a failure: after that it did not just change its mind.
	patience = time.Second

	// activeFor is how long a connection counts as active after it carried
	// something.
	activeFor = 2 * time.Second
)

// Table holds the open connections of a process and its latest failures. It is
// a tunnel.Observer; make it with NewTable and keep Run running. All methods
// may be called from any goroutine.
type Table struct {
	started time.Time
	conns   sync.Map // *tunnel.Flow → *conn; no lock is common to all
	number  atomic.Uint64
	dials   dials
	ended   [2]atomic.Int64 // bytes up and down of connections that are closed

	failures failures
	gone     departures
	history  history

	sums  atomic.Pointer[sums] // as of the last sample; never nil
	looks atomic.Uint64        // samples so far
}

// dials counts since the start, and for the current interval of the history.
type dials struct {
	total, failed  atomic.Int64
	good, sum, max atomic.Int64                     // of this interval: successful ones and their nanoseconds
	byFailure      map[tunnel.Failure]*atomic.Int64 // all there are; the map does not change
}

// sums are totals over all connections.
type sums struct {
	open, stalled, resuming int

	all        load
	byNext     map[hop]load      // by the hop after this one
	byTenant   map[string]*tally // of a server of many
	bySource   map[origin]load   // of links only
	neighbours map[neighbour]load
	named      map[string]int // by tenant, how many of neighbours were new
}

// hop is one after this, of one tenant: those of others may have the same ids.
type hop struct {
	tenant string
	tunnel.Hop
}

// origin is where a link comes from: balancers may give those of several tenants
// one address.
type origin struct{ tenant, remote string }

// tally is what one tenant has open.
type tally struct {
	load
	resuming int
}

// load is the traffic of one peer.
type load struct {
	up, down      float64
	open, stalled int
}

func (f load) plus(g load) load {
	return load{f.up + g.up, f.down + g.down, f.open + g.open, f.stalled + g.stalled}
}

// conn is an open connection. What is not atomic is set before it is shared.
type conn struct {
	number                uint64 // in the order of opening
	tenant                string
	id, front, source     string
	destination, resolved string
	next                  tunnel.Hop
	from                  neighbour // zero: a peer
	since                 time.Time
	flow                  *tunnel.Flow
	lasting               tunnel.Resumable // nil: it ends with what carries it
	moved                 atomic.Int64     // when it last carried something, a tunnel.Moment
	stalled               [2]atomic.Int64  // when B (up) or A (down) stopped reading, a tunnel.Moment; 0 if it reads
	rate                  [2]atomic.Uint64
	seen                  [2]int64 // used by the sampler alone: bytes so far
	held                  [2]bool  // used by the sampler alone
}

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{started: time.Now(), dials: dials{byFailure: map[tunnel.Failure]*atomic.Int64{}}}
	for f := range tunnel.Failures() {
		t.dials.byFailure[f] = new(atomic.Int64)
	}
	t.sums.Store(new(sums))
	return t
}

// Dialed implements tunnel.Observer.
func (t *Table) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if f.Resume.Again() {
		return // a try of many, about a connection that was dialed before
	}
	t.dials.total.Add(1)
	if err == nil {
		t.dials.good.Add(1)
		t.dials.sum.Add(int64(took))
		for old := t.dials.max.Load(); int64(took) > old && !t.dials.max.CompareAndSwap(old, int64(took)); {
			old = t.dials.max.Load()
		}
		return
	}
	dial := tunnel.AsDialError(f.Address, err)
	t.dials.failed.Add(1)
	kind := dial.Failure
	if !kind.Known() {
		kind = tunnel.FailInternal
	}
	t.dials.byFailure[kind].Add(1)
	if kind != tunnel.FailCancelled || took >= patience {
		t.failures.add(dialFailure(f, took, dial))
	}
}

// Opened implements tunnel.Observer.
func (t *Table) Opened(f *tunnel.Flow) {
	c := &conn{
		number: t.number.Add(1), tenant: f.Tenant(), id: f.ID, front: f.Front, destination: f.Address, next: f.Hop,
		since: f.Opened, flow: f, from: frontendOf(f), lasting: f.Resumable,
	}
	if f.Source != nil {
		c.source = f.Source.String()
	}
	if f.Far != nil && f.Far.String() != c.destination {
		c.resolved = f.Far.String()
	}
	c.moved.Store(int64(tunnel.At(c.since)))
	t.conns.Store(f, c)
}

// Closed implements tunnel.Observer.
func (t *Table) Closed(f *tunnel.Flow, took time.Duration, err error) {
	up, down := f.Sent()
	t.ended[0].Add(up)
	t.ended[1].Add(down)
	t.conns.Delete(f)
	if f.Interrupted(err) {
		return
	}
	if failure, worth := connectionFailure(f, took, err); worth {
		t.failures.add(failure)
	}
}

// Forget drops the failures of a tenant that is over, and who left it last. It
// does nothing on a nil Table.
func (t *Table) Forget(tenant string) {
	if t != nil {
		t.failures.forget(tenant)
		t.gone.forget(tenant)
	}
}

// Run samples the connections until ctx ends. It must be called once.
func (t *Table) Run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			bytes := t.sample(now, now.Sub(last))
			t.record(now, bytes)
			last = now
		}
	}
}

// sample looks at every connection once, and returns the bytes carried since
// the start, up and down.
func (t *Table) sample(now time.Time, since time.Duration) (bytes [2]int64) {
	s := &sums{
		byNext: map[hop]load{}, byTenant: map[string]*tally{}, bySource: map[origin]load{},
		neighbours: map[neighbour]load{}, named: map[string]int{},
	}
	bytes = [2]int64{t.ended[0].Load(), t.ended[1].Load()}
	t.conns.Range(func(_, value any) bool {
		c := value.(*conn)
		course := c.course()
		stalled := c.sample(now, since, !course.Lost.IsZero())
		s.add(c, course, stalled)
		bytes[0] += c.seen[0]
		bytes[1] += c.seen[1]
		return true
	})
	t.sums.Store(s)
	t.looks.Add(1)
	return bytes
}

// sample notes whether either side has stopped reading: bytes waited for it at
// the last sample and wait now, and none has passed in between. While nothing
// carries the connection, nobody is to blame.
func (c *conn) sample(now time.Time, since time.Duration, lost bool) (stalled bool) {
	var sent [2]int64
	var held [2]bool
	held[0], held[1] = c.flow.Held()
	sent[0], sent[1] = c.flow.Sent()
	for i := range sent {
		passed := sent[i] - c.seen[i]
		if passed > 0 {
			c.moved.Store(int64(tunnel.At(now)))
		}
		if held[i] && c.held[i] && passed == 0 && !lost {
			c.stalled[i].CompareAndSwap(0, int64(tunnel.At(now.Add(-since))))
			stalled = true
		} else {
			c.stalled[i].Store(0)
		}
		rate := math.Float64frombits(c.rate[i].Load())
		rate += smoothing * (float64(passed)/since.Seconds() - rate)
		if rate < 1 {
			rate = 0
		}
		c.rate[i].Store(math.Float64bits(rate))
	}
	c.seen, c.held = sent, held
	return stalled
}

// add adds a connection to the counts of its neighbours.
func (s *sums) add(c *conn, course tunnel.ResumeStatus, stalled bool) {
	f := load{open: 1}
	f.up, f.down = c.rates()
	if stalled {
		f.stalled = 1
	}
	s.open, s.stalled = s.open+1, s.stalled+f.stalled
	s.all = s.all.plus(f)
	if !course.Lost.IsZero() {
		s.resuming++
	}
	if course.Hop != (tunnel.Hop{}) {
		next := hop{c.tenant, course.Hop}
		s.byNext[next] = s.byNext[next].plus(f)
	}
	if c.tenant != "" {
		s.tenant(c.tenant, f, !course.Lost.IsZero())
	}
	if byPeer(c.front) {
		from := origin{c.tenant, course.Source}
		s.bySource[from] = s.bySource[from].plus(f)
	}
	s.near(c, f)
}

// tenant adds a connection to the counts of its tenant.
func (s *sums) tenant(name string, f load, resuming bool) {
	t := s.byTenant[name]
	if t == nil {
		t = &tally{}
		s.byTenant[name] = t
	}
	t.load = t.plus(f)
	if resuming {
		t.resuming++
	}
}

// course is how the connection has fared, with the hop and the source that it
// has now.
func (c *conn) course() tunnel.ResumeStatus {
	now := tunnel.ResumeStatus{}
	if c.lasting != nil {
		now = c.lasting.ResumeStatus()
	}
	if now.Hop == (tunnel.Hop{}) {
		now.Hop = c.next
	}
	if now.Source == "" {
		now.Source = c.source
	}
	return now
}

func (c *conn) rates() (up, down float64) {
	return math.Float64frombits(c.rate[0].Load()), math.Float64frombits(c.rate[1].Load())
}

// view returns the connection as the API shows it.
func (c *conn) view(now time.Time) Connection {
	course := c.course()
	v := Connection{
		Tenant: c.tenant, ID: c.id, Front: c.front, Source: course.Source, Destination: c.destination, Resolved: c.resolved, Next: course.Hop.String(), Since: c.since,
		Resumes: course.Resumes,
	}
	var seconds float64
	switch v.State, v.StalledBy, seconds = c.state(now, course); v.State {
	case StateStalled:
		v.StalledFor = seconds
	case StateResuming:
		v.ResumingFor = seconds
	}
	v.UpBytes, v.DownBytes = c.flow.Sent()
	v.Up, v.Down = c.rates()
	return v
}

// state is with whom it is stalled, and for how long it has been stalled or
// resuming.
func (c *conn) state(now time.Time, course tunnel.ResumeStatus) (state, by string, seconds float64) {
	if !course.Lost.IsZero() {
		return StateResuming, "", now.Sub(course.Lost).Seconds()
	}
	for i, who := range []string{"destination", "client"} {
		if at := c.stalled[i].Load(); at != 0 {
			return StateStalled, who, time.Duration(int64(tunnel.At(now)) - at).Seconds()
		}
	}
	if c.moved.Load() > int64(tunnel.At(now.Add(-activeFor))) {
		return StateActive, "", 0
	}
	return StateIdle, "", 0
}
