package routes

import (
	"errors"
	"net/netip"

	"konnectivity/tunnel"
)

const (
	// MaxServers is how many servers a Table has room for.
	MaxServers = 64

	// MaxRoutes bounds what one server may tell: 50,000 agents with five keys each, in
	// some 16 MiB.
	MaxRoutes = 1 << 18
)

// ErrFull is about a server that tells of more than MaxRoutes keys.
var ErrFull = errors.New("it tells of more agents and identifiers than there is room for")

// Servers is a set of servers, by their numbers in a Table.
type Servers uint64

// Has says whether a server is among them.
func (s Servers) Has(server int) bool { return s&(1<<server) != 0 }

// Table is what servers have told of their agents. The zero value is empty. It is one
// map for all clusters, so that a name costs no more than a key.
type Table struct {
	keys    map[place]entry
	lengths Lengths // of all prefixes among keys
	counts  [MaxServers]Count
	waits   []wait // in order of time
}

// Count is how much one server has told.
type Count struct{ Routes, Agents int }

// entry is where a key is.
type entry struct {
	at    Servers
	until tunnel.Moment // where it is nowhere: how long it is waited for
}

// wait is a key that is gone and may come back until some time.
type wait struct {
	place
	until tunnel.Moment
}

// Learn takes in what a server says at a time. Kinds that it does not know are skipped.
func (t *Table) Learn(server int, r Record, now tunnel.Moment) error {
	if r.Key.Kind < Agent || r.Key.Kind > AnyPrefix {
		return nil
	}
	switch at := (place{r.Cluster, r.Key}); r.Op {
	case There:
		return t.add(server, at)
	case Gone:
		t.remove(server, at, now)
	}
	return nil
}

func (t *Table) add(server int, p place) error {
	was, known := t.keys[p]
	if was.at.Has(server) {
		return nil
	}
	if t.counts[server].Routes >= MaxRoutes {
		return ErrFull
	}
	if t.keys == nil {
		t.keys = make(map[place]entry)
	}
	if !known {
		t.lengths.Count(p.key, 1)
	}
	t.keys[p] = entry{at: was.at | 1<<server}
	t.counts[server].add(p.key, 1)
	return nil
}

// remove takes a key from a server. Where it is nowhere else, its agent may come back.
func (t *Table) remove(server int, p place, now tunnel.Moment) {
	e := t.keys[p]
	if !e.at.Has(server) {
		return
	}
	t.counts[server].add(p.key, -1)
	if e.at &^= 1 << server; e.at != 0 {
		t.keys[p] = e
		return
	}
	if len(t.waits) >= MaxRoutes { // keys come and go that quickly: none is waited for
		t.drop(p)
		return
	}
	e.until = now + tunnel.Moment(tunnel.BackTime)
	t.keys[p] = e
	t.waits = append(t.waits, wait{p, e.until})
}

// drop removes a key that is nowhere.
func (t *Table) drop(p place) {
	delete(t.keys, p)
	t.lengths.Count(p.key, -1)
}

func (n *Count) add(k Key, by int) {
	n.Routes += by
	if k.Kind == Agent {
		n.Agents += by
	}
}

// Forget takes all keys from a server whose link has ended.
func (t *Table) Forget(server int, now tunnel.Moment) {
	for p, e := range t.keys {
		if e.at.Has(server) {
			t.remove(server, p, now)
		}
	}
}

// Sweep drops the keys that are waited for no more.
func (t *Table) Sweep(now tunnel.Moment) {
	n := 0
	for ; n < len(t.waits) && t.waits[n].until <= now; n++ {
		p := t.waits[n].place
		if e, known := t.keys[p]; known && e.at == 0 && e.until <= now {
			t.drop(p)
		}
	}
	if t.waits = t.waits[n:]; len(t.waits) == 0 {
		t.waits = nil
	}
}

// Due is when Sweep will have something to do, if at all.
func (t *Table) Due() (at tunnel.Moment, any bool) {
	if len(t.waits) == 0 {
		return 0, false
	}
	return t.waits[0].until, true
}

// Find returns the servers that have a key of a cluster, and whether it is waited for.
func (t *Table) Find(cluster string, k Key, now tunnel.Moment) (at Servers, waited bool) {
	e, known := t.keys[place{cluster, k}]
	return e.at, known && e.at == 0 && e.until > now
}

// Longest is Find for the longest prefix that has an address, of more than least bits.
func (t *Table) Longest(cluster string, addr netip.Addr, least int, now tunnel.Moment) (at Servers, waited bool) {
	for k := range t.lengths.Keys(addr, least) {
		at, waiting := t.Find(cluster, k, now)
		if at != 0 {
			return at, false
		}
		waited = waited || waiting
	}
	return 0, waited
}

// Count is how much a server has told.
func (t *Table) Count(server int) Count { return t.counts[server] }
