package peers

import (
	"math/rand/v2"
	"time"
)

// leavePause is the longest pause between two attempts for which a server that
// is about to go waits: it should be gone within two seconds.
const leavePause = time.Second

// Done notes that an attempt that Next asked for has ended.
func (p *Plan) Done(address string) { p.place(address).dialing-- }

// Met notes that the server id was met at an address; count is what it told of
// how many there are (0: nothing). nil means that it is connected already, so
// that the new session is one too many.
func (p *Plan) Met(address, id string, count int, silent bool, now time.Time) *Peer {
	t := p.place(address)
	t.met, t.tried = id, now
	m := &Peer{id: id, at: t, since: now, silent: silent}
	p.Heard(m, count)
	if old := p.peers[id]; old != nil && !old.leaving {
		if p.Want() > p.Active() {
			t.next = now.Add(t.duplicate())
		}
		return nil
	}
	t.failing, t.next = false, now
	p.peers[id] = m
	p.probeLater(now)
	p.hope()
	return m
}

// probeLater sets the time of the next probe when a server was connected. The pause
// depends on the members, and the present one was chosen without this member. A probe
// that fell due while a server was missing is not made at once: every client that
// missed the server would make its probe as the server comes back. The next one is
// put off by a part of the pause only, so that probes are made even while servers come
// and go.
func (p *Plan) probeLater(now time.Time) {
	every := p.probeEvery()
	next := now.Add(Jitter(every))
	switch {
	case !p.nextProbe.Before(now):
		p.nextProbe = earlier(p.nextProbe, next)
	case !p.missed:
		p.nextProbe, p.missed = next, true
	default:
		p.nextProbe = now.Add(rand.N(every + 1))
	}
}

// Failed notes that an attempt at an address failed. first says that it is the
// first failure there since a session was made, and needless that no server is
// missing.
func (p *Plan) Failed(address string, now time.Time) (first, needless bool) {
	t := p.place(address)
	pause := t.failed(now, p.policy.Spread)
	if p.waitedFor() {
		pause = min(pause, Jitter(leavePause))
	}
	t.tried, t.next = now, now.Add(pause)
	if p.covered(t) && p.Active() >= p.Want() {
		return false, true
	}
	first = !t.failing
	t.failing = true
	return first, false
}

// Retry forgets the failures of all addresses, since what caused them may be
// over, and lets those that no connected server covers be dialed at once.
func (p *Plan) Retry() {
	for _, t := range p.places {
		if t.Succeed(); !p.covered(t) {
			t.next = time.Time{}
		}
	}
}

// Leaving notes that a server said that it is about to go.
func (p *Plan) Leaving(m *Peer, now time.Time) {
	m.leaving = true
	if p.policy.ByAddress {
		m.at.next = now
		if soon := m.at.tried.Add(p.policy.Base); soon.After(now) {
			m.at.next = soon
		}
		return
	}
	p.redial(m, now)
}

// Replaced notes that another session has taken m's place.
func (p *Plan) Replaced(m *Peer) { m.leaving = true }

// Lost notes that a session has ended. succeeded says that a newer one to the
// same server has taken its place.
func (p *Plan) Lost(m *Peer, now time.Time) (succeeded bool) {
	if p.peers[m.id] != m {
		return true
	}
	delete(p.peers, m.id)
	switch {
	case !m.leaving:
		p.redial(m, now)
	case !p.covered(m.at) && now.Sub(m.since) >= p.policy.ShortLife:
		// A draining server refuses new sessions. These failures do not count against the
		// server that starts at the same address.
		p.redial(m, now)
	}
	return false
}

// waitedFor reports whether servers that are about to go wait until there is another.
func (p *Plan) waitedFor() bool {
	return p.policy.ByAddress && p.Active() == 0 && p.any(func(m *Peer) bool { return m.leaving })
}

// redial lets m's address be dialed again soon.
func (p *Plan) redial(m *Peer, now time.Time) {
	for _, t := range p.places {
		t.calm()
	}
	t, life := m.at, now.Sub(m.since)
	switch {
	case life >= p.policy.ShortLife:
		t.Succeed()
	case m.leaving || !p.cut(t, life, now):
		t.next = now.Add(t.Failure())
		return
	}
	t.cutAt, t.struck, t.next = now, 0, now.Add(t.lost(life, p.policy.Spread))
}

// cut reports whether a short session at t counts as one that was cut. With
// Policy.Wary, one that ended at once does not.
func (p *Plan) cut(t *place, life time.Duration, now time.Time) bool {
	if p.policy.Wary && life < goodLife {
		return false
	}
	ok, _ := t.cuts.take(now, p.policy.Losses, lossEvery)
	return ok
}

// Heard takes in a count that a server told.
func (p *Plan) Heard(m *Peer, count int) {
	m.count = count
	if count > 0 {
		p.told = count
	}
}

// recount lets the search be quick when there is more to be found.
func (p *Plan) recount() {
	want := p.Want()
	if want > p.wanted {
		p.hope()
	}
	p.wanted = want
}

// hope lets the search be quick: something has just changed for the better.
func (p *Plan) hope() {
	for _, t := range p.places {
		fails := t.fails
		t.hope(p.Want())
		if p.policy.Wary {
			t.fails = fails
		}
		if p.covered(t) {
			t.next = time.Time{}
		}
	}
}
