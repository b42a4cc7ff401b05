package server

import (
	"context"
	"time"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// fairLook is the interval at which the bytes of tenants are compared.
const fairLook = 250 * time.Millisecond

// held is what keeps the cluster's links from reading; nil where there are no
// tenants.
func (cl *cluster) held() *tunnel.Hold {
	if cl.server.opts.Tenants == nil {
		return nil
	}
	return &cl.hold
}

// keepFair has tenants that carry bulk at the same time carry equal amounts, as far
// as it is the server that holds them down, until life ends.
func (t *tenants) keepFair(life context.Context) {
	var f fairness
	m := &meter{each: t.server.eachCluster}
	m.look()
	for wait.For(life, fairLook) {
		carried, took := m.look()
		for f.begin(carried, took, time.Now()); f.active(); {
			if !fairRound(life, &f, m) {
				return
			}
		}
	}
}

// fairRound holds up the tenants that are ahead for one round; false: life has ended.
func fairRound(life context.Context, f *fairness, m *meter) bool {
	for _, cl := range m.busy {
		if f.held(cl.name) {
			cl.hold.For(f.hold)
		}
	}
	if !wait.For(life, f.hold) {
		return false
	}
	during, held := m.read()
	if !wait.For(life, freeTime) {
		return false
	}
	free, rest := m.read()
	f.note(during, free, held, rest, time.Now())
	return true
}

// meter reads how much clusters carry.
type meter struct {
	each func(do func(*cluster)) // calls do for all clusters
	last time.Time
	busy []*cluster // those that had carried something at the last look
}

// look returns the bytes that clusters have carried since the last look or read, and
// the time since. Only look walks all clusters, of which there may be thousands, and it
// does nothing for those that carry nothing.
func (m *meter) look() (carried map[string]int64, took time.Duration) {
	clear(m.busy)
	m.busy = m.busy[:0]
	m.each(func(cl *cluster) {
		if cl.carried() != cl.metered {
			m.busy = append(m.busy, cl)
		}
	})
	return m.read()
}

// read is look for the clusters that had carried something at the last look.
func (m *meter) read() (carried map[string]int64, took time.Duration) {
	carried = make(map[string]int64, len(m.busy))
	for _, cl := range m.busy {
		all := cl.carried()
		if n := all - cl.metered; n > 0 {
			carried[cl.name] = n
		}
		cl.metered = all
	}
	now := time.Now()
	took, m.last = now.Sub(m.last), now
	return carried, took
}

// carried returns the bytes carried in both directions.
func (cl *cluster) carried() int64 {
	return cl.forwarder.Total.Up.Load() + cl.forwarder.Total.Down.Load()
}
