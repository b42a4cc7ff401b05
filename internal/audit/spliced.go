package audit

import (
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel"
)

const (
	// noticeTime is added to the window of a connection that has lost its path through
	// this server: so much later than this side, another one may notice the loss.
	noticeTime = 20 * time.Second

	// maxWaiting bounds the connections that may be resumed here, each of which takes about
	// 1 KiB. Those beyond it have ended as far as the records say.
	maxWaiting = 16384

	// maxPast is how many connections that have ended are remembered: those of a second, at
	// a rate that few servers see.
	maxPast = 4096
)

// isSpliced reports whether a flow is one of several that may carry one connection through a
// server, one after the other, each from a link to another (docs/link-protocol.md §9).
func isSpliced(f *tunnel.Flow) bool {
	return f.Resumable == nil && f.Resume != nil && f.Resume.Granted.Window > 0
}

// splicedConns joins such flows, so that the connection has one record of its opening and one
// of its end.
type splicedConns struct {
	log *Log

	mu      sync.Mutex
	conns   map[connKey]*splicedConn
	waiting int
	ended   bool // none waits any more

	past     [maxPast]connKey // a ring of those that have ended
	pastNext int
}

// connKey names a connection. Tokens are secret, so no other client's is the same. A client
// may use one token for several connections, so the destination is part of the key: the end
// that has a connection does not resume it for another.
type connKey struct {
	tenant      string
	token       [16]byte
	destination string
}

// splicedConn is such a connection.
type splicedConn struct {
	flows int // open ones
	since time.Time
	echo  bool        // it has ended before, and its ends only tell each other that they have all
	over  bool        // a flow has ended, and not because a link was lost
	timer *time.Timer // while there is no flow; else nil

	// end is the record of its end: with the figures of all flows so far, and else of the one
	// that ended last, or that made it over. It is resumed if the first went on with what
	// another process had.
	end record
}

func (s *splicedConns) init(l *Log) { s.log, s.conns = l, make(map[connKey]*splicedConn) }

func keyOf(f *tunnel.Flow) connKey { return connKey{f.Tenant(), f.Resume.Token, f.Address} }

// opened counts a flow in, which must be spliced.
func (s *splicedConns) opened(f *tunnel.Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(f)
	c := s.conns[key]
	if c == nil {
		c = &splicedConn{flows: 1, since: f.Opened, end: record{event: closed, resumed: f.Resume.Again()}}
		c.echo = c.end.resumed && slices.Contains(s.past[:], key)
		s.conns[key] = c
		if !c.echo {
			s.log.add(&record{event: opened, at: f.Opened, flow: f, resumed: c.end.resumed})
		}
		return
	}
	c.flows++
	c.end.resumes++
	s.awakeLocked(c)
}

// closed counts a flow out. The connection ends with the last one, unless that lost its
// link and another may come.
func (s *splicedConns) closed(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(r.flow)
	c := s.conns[key]
	if c == nil {
		return
	}
	c.flows--
	c.end.up += r.up
	c.end.down += r.down
	lost := r.flow.Interrupted(r.err)
	if !lost || !c.over {
		c.end.at, c.end.flow, c.end.err = r.at, r.flow, r.err
	}
	c.over = c.over || !lost
	switch {
	case c.flows > 0:
	case c.over || s.ended || s.waiting >= maxWaiting:
		s.endLocked(key, c)
	default:
		s.waiting++
		c.timer = time.AfterFunc(min(r.flow.Resume.Window, r.flow.Resume.Granted.Window)+noticeTime, func() { s.expire(key, c) })
	}
}

// expire ends a connection that was not resumed here.
func (s *splicedConns) expire(key connKey, c *splicedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.timer != nil && s.conns[key] == c {
		s.endLocked(key, c)
	}
}

func (s *splicedConns) awakeLocked(c *splicedConn) {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
		s.waiting--
	}
}

func (s *splicedConns) endLocked(key connKey, c *splicedConn) {
	s.awakeLocked(c)
	delete(s.conns, key)
	if c.echo {
		return
	}
	if c.over {
		s.past[s.pastNext] = key
		s.pastNext = (s.pastNext + 1) % maxPast
	}
	c.end.took = c.end.at.Sub(c.since)
	s.log.add(&c.end)
}

// end ends all connections that wait, and those whose last flow ends from now on.
func (s *splicedConns) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for key, c := range s.conns {
		if c.flows == 0 {
			s.endLocked(key, c)
		}
	}
}
