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
// whose server is about to go, or whose server is another one's too, one more is chosen.
func (p *Plan) elect() {
	left, servers := p.policy.Most, map[string]bool{}
	for _, t := range p.places {
		t.chosen = t.listed && (p.policy.Most == 0 || left > 0)
		if !t.chosen {
			continue
		}
		m := p.at(t)
		switch {
		case m == nil && !t.failing && !p.home(t): // it has yet to be met
			left--
		case m != nil && !servers[m.id]:
			servers[m.id] = true
			left--
		}
	}
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
// the addresses that are chosen, and have been for Policy.ShortLife. It is one at another
// address, or one of several behind the same. nil: there is none.
func (p *Plan) Surplus(now time.Time) *Peer {
	if p.policy.Most == 0 {
		return nil
	}
	p.elect()
	settled, elsewhere, beside := 0, []*Peer(nil), []*Peer(nil)
	for _, m := range p.peers {
		switch {
		case m.leaving || !m.at.listed:
		case !m.at.chosen:
			elsewhere = append(elsewhere, m)
		case now.Sub(m.since) >= p.policy.ShortLife:
			settled++
			if p.stay(m.at) > 1 {
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

// stay is how many servers are connected at an address and mean to stay.
func (p *Plan) stay(t *place) (n int) {
	for _, m := range p.peers {
		if m.at == t && !m.leaving {
			n++
		}
	}
	return n
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
