package link

import (
	"cmp"
	"slices"
	"time"
)

// streams are those of a link that are not closed. Session.mu guards them.
type streams struct {
	byID       map[uint64]*Stream
	nextID     uint64 // of the next one opened here
	lastPeerID uint64
	most       int // maxStreams; tests have fewer

	// unacked are those that have ended, and since when. A stream that is closed
	// leaves it at once, with all of its connection that hangs on it.
	unacked map[*Stream]time.Time
}

// newStreams returns the books of one side. The initiator's ids are odd.
func newStreams(initiator bool) streams {
	s := streams{byID: map[uint64]*Stream{}, nextID: 2, most: maxStreams}
	if initiator {
		s.nextID = 1
	}
	return s
}

// empty says whether there are none.
func (s *streams) empty() bool { return len(s.byID) == 0 }

// own says whether id is one that this side gives out.
func (s *streams) own(id uint64) bool { return id%2 == s.nextID%2 }

// give returns the id of a stream to be opened here.
func (s *streams) give() uint64 {
	id := s.nextID
	s.nextID += 2
	return id
}

// use notes an id that the peer gave out, and says whether it may.
func (s *streams) use(id uint64) bool {
	if s.own(id) || id <= s.lastPeerID {
		return false
	}
	s.lastPeerID = id
	return true
}

// find returns the stream, nil for one that is gone, or a violation for one
// that never was.
func (s *streams) find(id uint64) (*Stream, error) {
	if st, ok := s.byID[id]; ok {
		return st, nil
	}
	used := id <= s.lastPeerID
	if s.own(id) {
		used = id < s.nextID
	}
	if id == 0 || !used {
		return nil, violation("frame for a stream that was never opened")
	}
	return nil, nil
}

func (s *streams) add(st *Stream) { s.byID[st.id()] = st }

// remove takes st out and says whether it was there: one that was refused is
// not.
func (s *streams) remove(st *Stream) bool {
	there := s.byID[st.id()] == st
	if there {
		delete(s.byID, st.id())
		delete(s.unacked, st)
	}
	return there
}

func (s *streams) count() int { return len(s.byID) }

// awaitAcks notes that st has ended, but for acknowledgements.
func (s *streams) awaitAcks(st *Stream, now time.Time) {
	if s.unacked == nil {
		s.unacked = make(map[*Stream]time.Time)
	}
	s.unacked[st] = now
}

// overdue returns the ended streams that which selects, of those that have waited so long for
// acknowledgements, in the order of their ids. There may be thousands that have. The time begins
// anew while a stream is in use: an ACK has passed, or the holder has not closed it.
func (s *streams) overdue(now time.Time, wait time.Duration, which func(*Stream) bool) (late []*Stream) {
	for st, since := range s.unacked {
		switch c := &st.carrier; {
		case c.used || !st.recv.closed():
			c.used = false
			s.unacked[st] = now
		case now.Sub(since) >= wait && which(st):
			late = append(late, st)
		}
	}
	slices.SortFunc(late, func(a, b *Stream) int { return cmp.Compare(a.id(), b.id()) })
	return late
}
