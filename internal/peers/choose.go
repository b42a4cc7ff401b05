package peers

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

// weight is how much a client prefers an address to others. Clients' preferences have
// nothing to do with one another, so each of n addresses is the first choice of one client
// in n, and one that comes or goes changes the choice of those clients alone: rendezvous
// hashing (Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates"). A
// choice of two by load would be more even, but clients know no server's load before they
// are connected to it, and would move whenever it changes.
func weight(client, address string) uint64 {
	sum := sha256.Sum256([]byte(client + "\x00" + address))
	return binary.BigEndian.Uint64(sum[:])
}

// elect says which addresses are to have a server: all that are listed, or, of more than
// Policy.Most, those that the client prefers. In the place of one that cannot be reached,
// whose server is about to go, or whose servers count for others already, one more is
// chosen.
func (p *Plan) elect() {
	left, counted := p.policy.Most, map[*Peer]bool{}
	for _, t := range p.places {
		t.chosen = t.listed && (p.policy.Most == 0 || left > 0)
		if !t.chosen || p.policy.Most == 0 {
			continue
		}
		switch m := p.toCount(t, counted); {
		case m != nil:
			counted[m] = true
			left--
		case !p.covered(t) && !t.failing && !p.home(t): // it has yet to be met
			left--
		}
	}
}

// toCount is the server of t that counts for it: none that counts for another, and rather
// one that is connected at t than one met there. It is the same at each look, else clients
// would connect to a server and leave it again. nil: there is none.
func (p *Plan) toCount(t *place, counted map[*Peer]bool) (best *Peer) {
	for _, m := range p.peers {
		switch {
		case !t.has(m) || counted[m]:
		case best == nil, best.at != t && m.at == t, (best.at == t) == (m.at == t) && m.id < best.id:
			best = m
		}
	}
	return best
}

// insert adds a place, in the order of the client's preference.
func (p *Plan) insert(t *place) {
	at := len(p.places)
	if p.policy.Most > 0 {
		t.weight = weight(p.policy.Client, t.address)
		at, _ = slices.BinarySearchFunc(p.places, t, func(a, b *place) int { return cmp.Compare(b.weight, a.weight) })
	}
	p.places = slices.Insert(p.places, at, t)
}

// Surplus is a server that is one too many: as many as there are to be are connected at
// the addresses that are chosen, and have been for Policy.ShortLife. It is one at none of
// these, or one of several at the same. nil: there is none.
func (p *Plan) Surplus(now time.Time) *Peer {
	if p.policy.Most == 0 {
		return nil
	}
	p.elect()
	settled, elsewhere, beside := 0, []*Peer(nil), []*Peer(nil)
	for _, m := range p.peers {
		switch chosen, others := p.among(m); {
		case m.leaving || !m.at.listed:
		case !chosen:
			elsewhere = append(elsewhere, m)
		case now.Sub(m.since) >= p.policy.ShortLife:
			settled++
			if others {
				beside = append(beside, m)
			}
		}
	}
	switch {
	case settled < p.policy.Most:
		return nil
	case len(elsewhere) > 0:
		return p.last(elsewhere)
	case settled > p.policy.Most:
		return p.last(beside)
	}
	return nil
}

// among says whether m is at a chosen address, and others are at the same.
func (p *Plan) among(m *Peer) (chosen, others bool) {
	for _, t := range p.places {
		if !t.chosen || !t.has(m) {
			continue
		}
		chosen = true
		others = others || p.any(func(other *Peer) bool { return other != m && t.has(other) })
	}
	return chosen, others
}

// last is the one of some servers that the client prefers least: by their addresses, and by
// their ids where they have one in common. nil: there are none.
func (p *Plan) last(some []*Peer) *Peer {
	if len(some) == 0 {
		return nil
	}
	return slices.MinFunc(some, func(a, b *Peer) int {
		return cmp.Or(cmp.Compare(a.at.weight, b.at.weight), cmp.Compare(weight(p.policy.Client, a.id), weight(p.policy.Client, b.id)))
	})
}
