package agent

import (
	"slices"
	"strings"

	"konnectivity/tunnel"
)

// status may be called from any goroutine.
func (s *set) status() []ServerStatus {
	var all []ServerStatus
	for _, m := range s.peers.Members() {
		if c := m.Session; !tunnel.Closed(c.Done()) {
			status := ServerStatus{
				ID: c.ServerID(), Address: m.Address.dial, Protocol: c.Protocol(), Since: m.Since,
				Streams: c.Streams(), Draining: tunnel.Closed(c.Draining()),
			}
			if l, ok := c.(linkSession); ok {
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
	for _, m := range s.peers.Members() {
		m.Session.Drain()
	}
	return s.streams()
}

func (s *set) streams() int {
	n := 0
	for _, m := range s.peers.Members() {
		n += m.Session.Streams()
	}
	return n
}

// gone says that every session has ended.
func (s *set) gone() bool {
	return !slices.ContainsFunc(s.peers.Members(), func(m member) bool { return !tunnel.Closed(m.Session.Done()) })
}

// close ends every session and joins every helper.
func (s *set) close() {
	s.peers.Close()
	s.closing.Wait()
	s.metrics.serverConnections.Set(0)
}
