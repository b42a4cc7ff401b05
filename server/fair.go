package server

import (
	"context"
	"time"

	"konnectivity/tunnel"
)

// fairLook is how often it is looked whether tenants carry unequal amounts.
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
	m := newMeter(t)
	m.read()
	for pause(life, fairLook) {
		carried, took := m.read()
		for f.begin(carried, took, time.Now()); f.active(); {
			if !t.fairRound(life, &f, m) {
				return
			}
		}
	}
}

// fairRound holds up those who are ahead, and lets them go again; false: life has
// ended.
func (t *tenants) fairRound(life context.Context, f *fairness, m *meter) bool {
	t.eachUnordered(func(cl *cluster) {
		if f.held(cl.name) {
			cl.hold.For(f.hold)
		}
	})
	if !pause(life, f.hold) {
		return false
	}
	during, held := m.read()
	if !pause(life, freeTime) {
		return false
	}
	free, rest := m.read()
	f.note(during, free, held, rest, time.Now())
	return true
}

// eachUnordered calls do for the server's own cluster and each tenant's.
func (t *tenants) eachUnordered(do func(*cluster)) {
	do(t.server.own)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, cl := range t.live {
		do(cl)
	}
}

// meter reads how much clusters carry.
type meter struct {
	tenants  *tenants
	last     time.Time
	was, now map[*cluster]int64 // bytes; now is only read's
}

func newMeter(t *tenants) *meter {
	return &meter{tenants: t, was: make(map[*cluster]int64), now: make(map[*cluster]int64)}
}

// read is what each has carried since the last time, of those that have, and how
// long that took.
func (m *meter) read() (carried map[string]int64, took time.Duration) {
	carried = make(map[string]int64)
	m.tenants.eachUnordered(func(cl *cluster) {
		all := cl.forwarder.Total.Up.Load() + cl.forwarder.Total.Down.Load()
		m.now[cl] = all
		if n := all - m.was[cl]; n > 0 {
			carried[cl.name] = n
		}
	})
	m.was, m.now = m.now, m.was
	clear(m.now)
	now := time.Now()
	took, m.last = now.Sub(m.last), now
	return carried, took
}

// pause waits for d; false: life has ended.
func pause(life context.Context, d time.Duration) bool {
	select {
	case <-life.Done():
		return false
	case <-time.After(d):
		return true
	}
}
