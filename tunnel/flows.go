package tunnel

import (
	"slices"
	"sync"
)

// Flows are the open connections of Forwarders, which can be judged anew, also those that were
// resumed, or handed over by another process. Any goroutine may call its methods. A nil Flows
// has no connections.
type Flows struct {
	// Judge says why a connection is not allowed any more; nil: it is. Its error is the cause
	// for which the connection is reset, and so tells CodePolicy. It may be called for
	// connections that are ending, by any goroutine, and must not block.
	Judge func(f *Flow) error

	mu      sync.Mutex
	open    []*Relay // each knows its place
	changes int      // calls of JudgeAll
}

// JudgeAll is called once new rules are in force. It judges all connections, resets those that
// are not allowed any more, and returns their number. One that is being dialed is judged as it
// opens. The lock is held only to copy the list, which takes some microseconds for 10,000.
func (fs *Flows) JudgeAll() (ended int) {
	if fs == nil {
		return 0
	}
	fs.mu.Lock()
	fs.changes++
	open := slices.Clone(fs.open)
	fs.mu.Unlock()
	for _, r := range open {
		if err := fs.Judge(r.Flow); err != nil {
			r.abort(err)
			ended++
		}
	}
	return ended
}

// now returns the number of calls of JudgeAll so far. It is taken before a dial is judged.
func (fs *Flows) now() int {
	if fs == nil {
		return 0
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.changes
}

// enter adds a connection that was judged after so many calls of JudgeAll.
func (fs *Flows) enter(r *Relay, since int) {
	if fs == nil {
		return
	}
	fs.mu.Lock()
	r.place = len(fs.open)
	fs.open = append(fs.open, r)
	changed := fs.changes != since
	fs.mu.Unlock()
	if changed {
		if err := fs.Judge(r.Flow); err != nil {
			r.abort(err)
		}
	}
}

// leave takes out a connection that has ended.
func (fs *Flows) leave(r *Relay) {
	if fs == nil {
		return
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	last := len(fs.open) - 1
	fs.open[r.place] = fs.open[last]
	fs.open[r.place].place = r.place
	fs.open[last] = nil
	fs.open = fs.open[:last]
}
