// Package memory keeps values in as little memory as they need: in a Memory for a time and up
// to a maximum number, and in a Map that is for few.
//
// Of the first kind are the answers of APIs (package server/auth), of DNS (adapters/resolve) and
// of the admin port (internal/admin), of the second what a server knows of each tenant.
package memory

import "time"

// Memory is such values. When it is full it drops expired entries first, then any;
// before that it has few expired ones more than others. It has no lock. Make it with New.
type Memory[K comparable, V any] struct {
	most    int
	entries map[K]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
}

// New returns one that keeps at most that many values.
func New[K comparable, V any](most int) Memory[K, V] {
	return Memory[K, V]{most: most, entries: make(map[K]entry[V])}
}

// Get returns the value of k, if it is there and has not expired.
func (m Memory[K, V]) Get(k K) (value V, ok bool) {
	e := m.entries[k] // or one that expired long ago
	if !time.Now().Before(e.until) {
		return value, false
	}
	return e.value, true
}

// Has says whether there is a value of k that has not expired.
func (m Memory[K, V]) Has(k K) bool {
	_, ok := m.Get(k)
	return ok
}

// Forget drops k.
func (m Memory[K, V]) Forget(k K) { delete(m.entries, k) }

// Put keeps a value of k for that time.
func (m Memory[K, V]) Put(k K, value V, keep time.Duration) {
	now := time.Now()
	if _, there := m.entries[k]; !there && len(m.entries) >= m.most {
		m.makeRoom(now)
	} else {
		m.tidy(now)
	}
	m.entries[k] = entry[V]{value: value, until: now.Add(keep)}
}

// tidy looks at a few entries, any ones, and drops those that have expired.
func (m Memory[K, V]) tidy(now time.Time) {
	few := 3
	for k, e := range m.entries {
		if !now.Before(e.until) {
			delete(m.entries, k)
		}
		if few--; few == 0 {
			return
		}
	}
}

func (m Memory[K, V]) makeRoom(now time.Time) {
	for k, e := range m.entries {
		if !now.Before(e.until) {
			delete(m.entries, k)
		}
	}
	for k := range m.entries {
		if len(m.entries) < m.most {
			return
		}
		delete(m.entries, k)
	}
}
