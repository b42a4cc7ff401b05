package admin

import (
	"cmp"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

const (
	// sampleEvery is the interval between samples. A stall is noticed after two, so
	// a page that polls shows it within 2 s. A sample of 10,000 connections takes a
	// few milliseconds.
	sampleEvery = 400 * time.Millisecond

	// smoothing is the weight of the newest sample in a connection's rates, which
	// then cover about the last two seconds.
	smoothing = 0.25

	// cancelledAfter is the duration from which a dial that its client cancels
	// counts as a failure: a client that waited so long wanted the connection.
	cancelledAfter = time.Second

	// activeFor is the time for which a connection counts as active after it
	// carried bytes.
	activeFor = 2 * time.Second
)

// Table holds the open connections of a process and its latest failures. It is
// a tunnel.Observer; make it with NewTable and keep Run running. All methods
// may be called from any goroutine.
type Table struct {
	started time.Time
	conns   sync.Map // *tunnel.Flow → *conn, without a common lock
	number  atomic.Uint64
	dials   dials
	ended   [2]atomic.Int64 // bytes up and down of closed connections

	failures   failures
	departures sync.Map // last *Departure by tenant, and of all for ""
	history    history

	sums    atomic.Pointer[sums] // as of the last sample; never nil
	samples atomic.Uint64        // so far
}

// dials counts since the start, and for the current interval of the history.
type dials struct {
	total, failed  atomic.Int64
	good, sum, max atomic.Int64                     // successful dials of this interval, and their nanoseconds
	byFailure      map[tunnel.Failure]*atomic.Int64 // by every kind; the map does not change
}

// sums are totals over all connections.
type sums struct {
	all        load
	byNext     map[hop]load // by the hop after this one
	byTenant   map[string]load
	bySource   map[origin]load // of links only
	neighbours map[neighbour]load
	named      map[string]int // number of neighbours by tenant
}

// hop is the next hop of a tenant's connections. Hops of other tenants may have the
// same ids.
type hop struct {
	tenant string
	tunnel.Hop
}

// origin is the source of a tenant's links. Behind a load balancer, several tenants may
// have the same address.
type origin struct{ tenant, remote string }

// load is the traffic of some connections, and their number by state.
type load struct {
	up, down                float64
	open, stalled, resuming int
}

func (f load) plus(g load) load {
	return load{f.up + g.up, f.down + g.down, f.open + g.open, f.stalled + g.stalled, f.resuming + g.resuming}
}

// conn is an open connection. Fields that are not atomic are set before it is shared,
// except those of the sampler.
type conn struct {
	*tunnel.Flow
	number           uint64 // in the order of opening
	source, resolved string
	from             neighbour       // zero for a peer
	moved            atomic.Int64    // when it last carried bytes, a tunnel.Moment
	stalled          [2]atomic.Int64 // when B (up) or A (down) stopped reading, a tunnel.Moment; 0 if it reads
	rate             [2]atomic.Uint64
	seen             [2]int64 // of the sampler: bytes so far
	held             [2]bool  // of the sampler
}

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{started: time.Now(), dials: dials{byFailure: map[tunnel.Failure]*atomic.Int64{}}}
	t.history.began = t.started
	for f := range tunnel.Failures() {
		t.dials.byFailure[f] = new(atomic.Int64)
	}
	t.sums.Store(new(sums))
	return t
}

// Dialed implements tunnel.Observer.
func (t *Table) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if f.Resume.Again() {
		return // one of many attempts to resume a connection that was dialed before
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
	if kind != tunnel.FailCancelled || took >= cancelledAfter {
		t.failures.add(dialFailure(f, took, dial))
	}
}

// Unanswered implements tunnel.Observer.
func (t *Table) Unanswered(*tunnel.Flow, time.Duration, error) {}

// Opened implements tunnel.Observer.
func (t *Table) Opened(f *tunnel.Flow) {
	c := &conn{Flow: f, number: t.number.Add(1), from: frontendOf(f)}
	if f.Source != nil {
		c.source = f.Source.String()
	}
	if f.Far != nil && f.Far.String() != f.Address {
		c.resolved = f.Far.String()
	}
	c.moved.Store(int64(tunnel.At(f.Opened)))
	t.conns.Store(f, c)
}

// Closed implements tunnel.Observer.
func (t *Table) Closed(f *tunnel.Flow, took time.Duration, err error) {
	t.conns.Delete(f) // first, or a sample might count its bytes twice
	up, down := f.Sent()
	t.ended[0].Add(up)
	t.ended[1].Add(down)
	if f.Interrupted(err) {
		return
	}
	if failure, ok := connectionFailure(f, took, err); ok {
		t.failures.add(failure)
	}
}

// Forget drops the failures and the last departure of a removed tenant. On a nil Table
// it does nothing.
func (t *Table) Forget(tenant string) {
	if t != nil {
		t.failures.forget(tenant)
		t.departures.Delete(tenant) // that of all stays
	}
}

// Run samples the connections until ctx ends. It must be called once.
func (t *Table) Run(ctx context.Context) {
	last := time.Now()
	wait.Every(ctx, sampleEvery, func() {
		now := time.Now()
		t.record(now, t.sample(now, now.Sub(last)))
		last = now
	})
}

// sample visits every connection once, and returns the bytes carried since the start, up
// and down.
func (t *Table) sample(now time.Time, since time.Duration) (bytes [2]int64) {
	s := &sums{
		byNext: map[hop]load{}, byTenant: map[string]load{}, bySource: map[origin]load{},
		neighbours: map[neighbour]load{}, named: map[string]int{},
	}
	bytes = [2]int64{t.ended[0].Load(), t.ended[1].Load()}
	t.conns.Range(func(_, value any) bool {
		c := value.(*conn)
		status := c.resumeStatus()
		stalled := c.sample(now, since, !status.Lost.IsZero())
		s.add(c, status, stalled)
		bytes[0] += c.seen[0]
		bytes[1] += c.seen[1]
		return true
	})
	t.sums.Store(s)
	t.samples.Add(1)
	return bytes
}

// sample updates rates and stalls. A side is stalled if bytes waited for it at the last
// sample and wait now, and none has passed in between. A connection that has lost its
// link is not stalled.
func (c *conn) sample(now time.Time, since time.Duration, lost bool) (stalled bool) {
	seconds := max(since, time.Millisecond).Seconds() // a coarse clock may not have moved
	var sent [2]int64
	var held [2]bool
	held[0], held[1] = c.Held()
	sent[0], sent[1] = c.Sent()
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
		rate += smoothing * (float64(passed)/seconds - rate)
		if rate < 1 {
			rate = 0
		}
		c.rate[i].Store(math.Float64bits(rate))
	}
	c.seen, c.held = sent, held
	return stalled
}

// add adds a connection to all counts.
func (s *sums) add(c *conn, status tunnel.ResumeStatus, stalled bool) {
	f := load{open: 1}
	f.up, f.down = c.rates()
	if stalled {
		f.stalled = 1
	}
	if !status.Lost.IsZero() {
		f.resuming = 1
	}
	s.all = s.all.plus(f)
	if status.Hop != (tunnel.Hop{}) {
		next := hop{c.Tenant(), status.Hop}
		s.byNext[next] = s.byNext[next].plus(f)
	}
	if tenant := c.Tenant(); tenant != "" {
		s.byTenant[tenant] = s.byTenant[tenant].plus(f)
	}
	if byPeer(c.Front) {
		from := origin{c.Tenant(), status.Source}
		s.bySource[from] = s.bySource[from].plus(f)
	}
	s.addNeighbours(c, f)
}

// resumeStatus returns the status with the current next hop and source, also of a
// connection that cannot be resumed.
func (c *conn) resumeStatus() tunnel.ResumeStatus {
	now := tunnel.ResumeStatus{}
	if c.Resumable != nil {
		now = c.Resumable.ResumeStatus()
	}
	if now.Hop == (tunnel.Hop{}) {
		now.Hop = c.Hop
	}
	now.Source = cmp.Or(now.Source, c.source)
	return now
}

func (c *conn) rates() (up, down float64) {
	return math.Float64frombits(c.rate[0].Load()), math.Float64frombits(c.rate[1].Load())
}

// view returns the connection as the API shows it.
func (c *conn) view(now time.Time) Connection {
	status := c.resumeStatus()
	v := Connection{
		Tenant: c.Tenant(), ID: c.ID, Front: c.Front, Source: status.Source, Identity: c.Who().Names(),
		Destination: c.Address, Resolved: c.resolved, Next: status.Hop.String(), Since: Past{c.Opened},
		Resumes: status.Resumes,
	}
	var seconds float64
	switch v.State, v.StalledBy, seconds = c.state(now, status); v.State {
	case StateStalled:
		v.StalledFor = seconds
	case StateResuming:
		v.ResumingFor = seconds
	}
	v.UpBytes, v.DownBytes = c.Sent()
	v.Up, v.Down = c.rates()
	return v
}

// state returns the state, the stalled side, and the seconds since it stalled or lost
// its link.
func (c *conn) state(now time.Time, status tunnel.ResumeStatus) (state, by string, seconds float64) {
	if !status.Lost.IsZero() {
		return StateResuming, "", now.Sub(status.Lost).Seconds()
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
