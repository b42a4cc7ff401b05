package tunnel

import "time"

// restAfter is the least time without input after which a socket rests. The most is twice
// that, so that few waits have to move the deadline. A rest costs two new goroutines, too
// much for every message of a slow exchange. Tests shorten it.
var restAfter = time.Second

// Rest implements Source.
func (s *socket) Rest(r Receiver) bool {
	s.reader = r
	return true
}

// wait bounds the wait for input that is about to begin by the time to rest. It returns
// false where the socket was seized, and is not to be waited for.
func (s *socket) wait() bool {
	if now := time.Now(); s.reader != nil && s.restAt.Sub(now) < restAfter {
		return s.readBy(now.Add(2 * restAfter))
	}
	return true
}

// readBy moves the deadline of reads. It returns false where the socket was seized: the
// deadline by which Seize ends them may be the one that was moved.
func (s *socket) readBy(t time.Time) bool {
	s.restAt = t
	_ = s.conn.SetReadDeadline(t)
	return s.seized.Load() == nil
}

// rest ends a turn in which nothing has come. The goroutine that waits from then on has
// never run anything else, so it has the smallest stack, 2 KiB.
func (s *socket) rest() error {
	if !s.readBy(time.Time{}) {
		return ErrSeized
	}
	go func() {
		AwaitInput(s.raw)
		s.reader.Ready()
	}()
	return nil
}
