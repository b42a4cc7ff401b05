package tunnel

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// ErrSeized is what reads of a Conn return whose socket was seized, and the cause with
// which its relay is to be ended.
var ErrSeized = errors.New("its socket goes on in another process")

// Seized is a socket that was taken from its Conn, to be another Conn's, of this process or
// of another. Its owner closes it.
type Seized struct {
	from *socket

	mu   sync.Mutex
	owed []byte // what the Conn was given since, and before if the kernel had not taken it
}

// Seize takes the socket of c from it. Reads of c end with ErrSeized at once, after what they
// have returned before. What c is given to write is kept for the next Conn, as is what a write
// under way has yet to write. Close, CloseWrite and Reset have no effect any more. It returns
// false, and changes nothing, where c is no socket, or one whose bytes pass through something
// else. It may be called once, while c is read and written.
func Seize(c Conn) (*Seized, bool) {
	s, ok := bare(c)
	if !ok {
		return nil, false
	}
	seized := &Seized{from: s}
	s.seized.Store(seized)
	_ = s.conn.SetDeadline(time.Unix(1, 0))
	return seized, true
}

// CanSeize reports whether Seize would succeed.
func CanSeize(c Conn) bool {
	_, ok := bare(c)
	return ok
}

// bare returns the socket whose bytes are c's as they are.
func bare(c Conn) (*socket, bool) {
	for {
		switch at := c.(type) {
		case *socket:
			return at, true
		case *refitted:
			if at.parts.In != at.base.In() || at.parts.Out != at.base.Out() {
				return nil, false
			}
			c = at.base
		default:
			return nil, false
		}
	}
}

// Owed returns what the Conn was given and the socket has not taken. Once the Conn's relay
// has ended, nothing is added.
func (s *Seized) Owed() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owed
}

// Control calls f with the socket's descriptor, unless the socket is closed.
func (s *Seized) Control(f func(fd uintptr)) error { return s.from.raw.Control(f) }

// Conn makes another Conn of the socket, which owns it from then on. What is owed is the
// caller's to write.
func (s *Seized) Conn() Conn {
	_ = s.from.conn.SetDeadline(time.Time{})
	return FromSeized(s.from.conn, s.FinSent())
}

// FinSent reports whether the direction away had ended before the socket was seized.
func (s *Seized) FinSent() bool { return s.from.finSent.Load() }

// FromSeized makes a Conn of a socket that was seized, as Wrap does. finSent is what FinSent
// returned: the kernel may know of no connection by then, for the peer may have ended its
// direction, too.
func FromSeized(c net.Conn, finSent bool) Conn {
	made := Wrap(c)
	if s, ok := made.(*socket); ok {
		s.finSent.Store(finSent)
	}
	return made
}

// Closed reports whether the Conn was closed before its socket was seized.
func (s *Seized) Closed() bool { return s.from.raw.Control(func(uintptr) {}) != nil }

// Close gives the socket up: it is closed unless another process has it too.
func (s *Seized) Close() error { return s.from.conn.Close() }

// seizedError is err, or what readers are told where it is due to Seize.
func (s *socket) seizedError(err error) error {
	if err != nil && s.seized.Load() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrSeized
	}
	return err
}

// keep takes over the rest of a write that ended with err. It returns false where that is
// not due to Seize.
func (s *socket) keep(err error, rest []byte) bool {
	seized := s.seized.Load()
	if seized == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	seized.mu.Lock()
	defer seized.mu.Unlock()
	seized.owed = append(seized.owed, rest...)
	return true
}

// keepChunks is keep for chunks of which the first n bytes were written.
func (s *socket) keepChunks(err error, src []Chunk, n int) bool {
	for _, c := range src {
		skip := min(n, c.Len())
		n -= skip
		if !s.keep(err, c.Bytes()[skip:]) {
			return false
		}
	}
	return true
}
