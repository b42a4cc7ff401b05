package auth

import "time"

// memory keeps values for a time, up to a maximum number. When it is full it
// drops expired entries first, then any; before that it has few expired ones more
// than others. It has no lock.
type memory[K comparable, V any] struct {
	most    int
	entries map[K]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
}

func newMemory[K comparable, V any](most int) memory[K, V] {
	return memory[K, V]{most: most, entries: make(map[K]entry[V])}
}

func (m memory[K, V]) get(k K) (value V, ok bool) {
	e, ok := m.entries[k]
	if !ok || !time.Now().Before(e.until) {
		return value, false
	}
	return e.value, true
}

func (m memory[K, V]) has(k K) bool {
	_, ok := m.get(k)
	return ok
}

func (m memory[K, V]) forget(k K) { delete(m.entries, k) }

func (m memory[K, V]) put(k K, value V, keep time.Duration) {
	now := time.Now()
	if _, there := m.entries[k]; !there && len(m.entries) >= m.most {
		m.makeRoom(now)
	} else {
		m.tidy(now)
	}
	m.entries[k] = entry[V]{value: value, until: now.Add(keep)}
}

// tidy looks at a few entries, any ones, and drops those that have expired.
func (m memory[K, V]) tidy(now time.Time) {
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

func (m memory[K, V]) makeRoom(now time.Time) {
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
