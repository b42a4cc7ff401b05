package memory

import (
	"iter"
	"slices"
)

// listed is how many entries are kept in a list. Go's own map has room for eight from the first
// one on, which for keys of some strings is half a kilobyte.
const listed = 8

// Map takes little memory while it has few entries: it is for something that exists thousands
// of times and mostly has one or two. The zero Map is empty. Like Go's map, it must not be
// changed by one goroutine while another uses it.
type Map[K comparable, V any] struct {
	list []pair[K, V]
	many map[K]V // instead of list, once there were more than listed
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

// Len is how many entries there are.
func (m *Map[K, V]) Len() int { return len(m.list) + len(m.many) }

// find returns the index in list of a key, -1 if it is not there.
func (m *Map[K, V]) find(key K) int {
	for i := range m.list {
		if m.list[i].key == key {
			return i
		}
	}
	return -1
}

// Get returns the entry with a key, or the zero value.
func (m *Map[K, V]) Get(key K) V {
	if i := m.find(key); i >= 0 {
		return m.list[i].value
	}
	return m.many[key]
}

// Set adds an entry, or replaces the one with that key.
func (m *Map[K, V]) Set(key K, value V) {
	i := m.find(key)
	switch {
	case i >= 0:
		m.list[i].value = value
	case m.many != nil:
		m.many[key] = value
	case len(m.list) < listed:
		m.list = append(m.list, pair[K, V]{key, value})
	default:
		m.many = map[K]V{key: value}
		for _, e := range m.list {
			m.many[e.key] = e.value
		}
		m.list = nil
	}
}

// Delete removes the entry with a key, if there is one.
func (m *Map[K, V]) Delete(key K) {
	if i := m.find(key); i >= 0 {
		m.list = slices.Delete(m.list, i, i+1)
		return
	}
	if delete(m.many, key); len(m.many) == 0 {
		m.many = nil
	}
}

// All are the entries, in no order. Nothing may be added or removed meanwhile.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, e := range m.list {
			if !yield(e.key, e.value) {
				return
			}
		}
		for key, value := range m.many {
			if !yield(key, value) {
				return
			}
		}
	}
}
