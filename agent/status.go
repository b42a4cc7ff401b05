package agent

import (
	"slices"
	"strings"
)

// publish copies the members for status.
func (s *set) publish() {
	all := make([]*member, 0, len(s.members)+len(s.former))
	for _, m := range s.members {
		all = append(all, m)
	}
	all = append(all, s.former...)
	s.metrics.serverConnections.Set(float64(len(s.members)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = all
}

// status may be called from any goroutine.
func (s *set) status() []ServerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []ServerStatus
	for _, m := range s.seen {
		if !ended(m) {
			status := ServerStatus{
				ID: m.ServerID(), Address: m.target.dial, Protocol: m.Protocol(), Since: m.since,
				Streams: m.Streams(), Draining: closed(m.Draining()),
			}
			if l, ok := m.session.(linkSession); ok {
				status.Software, status.Link, status.Heard = l.Peer().Software, l.Stats(), l.Heard()
			}
			all = append(all, status)
		}
	}
	slices.SortFunc(all, func(a, b ServerStatus) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// trouble is why the last attempt to connect failed; nil if none has since one
// worked. It may be called from any goroutine.
func (s *set) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

func (s *set) setFault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = err
}

// drain tells every server; it returns how many streams are open.
func (s *set) drain() int {
	for _, m := range s.all() {
		m.Drain()
	}
	return s.streams()
}

func (s *set) streams() int {
	n := 0
	for _, m := range s.all() {
		n += m.Streams()
	}
	return n
}

// gone says that every session has ended.
func (s *set) gone() bool {
	return !slices.ContainsFunc(s.all(), func(m *member) bool { return !ended(m) })
}

// close ends every session and joins every helper.
func (s *set) close() {
	for _, m := range s.all() {
		_ = m.Close()
	}
	s.helpers.Wait()
	s.mu.Lock()
	s.seen = nil
	s.mu.Unlock()
	s.metrics.serverConnections.Set(0)
}

func (s *set) all() []*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func ended(m *member) bool { return closed(m.Done()) }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
