package server

import (
	"sync/atomic"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/server/limits"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// traffic counts what a cluster does: of the server's own, totals alone. It is a tunnel.Observer.
type traffic struct {
	totals  tunnel.Totals
	dialed  atomic.Int64 // with success
	failed  atomic.Int64
	bounds  [limits.BoundKinds]atomic.Int64 // of those that failed, by the bound that refused them
	opened  atomic.Int64
	closed  atomic.Int64
	refused atomic.Int64 // agents
}

// Dialed implements tunnel.Observer.
func (t *traffic) Dialed(f *tunnel.Flow, _ time.Duration, err error) {
	if f.Resume.Again() {
		return // about a connection that was counted when it began
	}
	if err == nil {
		t.dialed.Add(1)
		return
	}
	t.failed.Add(1)
	if tunnel.FailureOf(err) == tunnel.FailBound {
		t.bounds[limits.BoundOf(err)].Add(1)
	}
}

// Unanswered implements tunnel.Observer.
func (t *traffic) Unanswered(*tunnel.Flow, time.Duration, error) {}

// Opened implements tunnel.Observer.
func (t *traffic) Opened(*tunnel.Flow) { t.opened.Add(1) }

// Closed implements tunnel.Observer.
func (t *traffic) Closed(*tunnel.Flow, time.Duration, error) { t.closed.Add(1) }

// open is how many connections are.
func (t *traffic) open() int64 {
	closed := t.closed.Load() // first, so that it is never more than were opened
	return t.opened.Load() - closed
}

// fill adds it to what the admin API shows of a tenant.
func (t *traffic) fill(v *admin.Tenant) {
	v.Connections.Open, v.Connections.Total = int(t.open()), t.opened.Load()
	v.Dials = admin.Dials{Total: t.dialed.Load() + t.failed.Load(), Failed: t.failed.Load(), Failures: map[string]int64{}}
	for b := range t.bounds {
		if n := t.bounds[b].Load(); n > 0 {
			v.Dials.Failures[tunnel.FailBound.Label()] += n
		}
	}
	v.Refused = t.refused.Load()
	v.UpBytes, v.DownBytes = t.totals.Load()
}

// past is what clusters that are gone have added to the server's figures, which never fall.
type past struct {
	up, down int64
	resumed  resume.Stats
}

// carried returns the bytes of all clusters since the start.
func (s *Server) carried() (up, down int64) {
	v := s.tenants.now.Load()
	up, down = v.past.up, v.past.down
	v.all(func(cl *cluster) {
		up += cl.traffic.totals.Up.Load()
		down += cl.traffic.totals.Down.Load()
	})
	return up, down
}

// Resuming returns the figures of connections that outlive their links, of all clusters.
func (s *Server) Resuming() resume.Stats {
	v := s.tenants.now.Load()
	stats := v.past.resumed
	v.all(func(cl *cluster) { stats = stats.Plus(cl.ends.Stats()) })
	return stats
}

// OnResume has f told of all clusters' pauses. It belongs to New.
func (s *Server) OnResume(f func(pause time.Duration)) {
	s.own.ends.OnResume(f)
	s.paused = f
}
