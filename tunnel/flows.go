package tunnel

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Flows are the open connections of Forwarders, which can be judged anew, also those that were
// resumed, or handed over by another process. Any goroutine may call its methods. A nil Flows
// has no connections.
type Flows struct {
	// Judge says why a connection is not allowed any more; nil: it is. It may be called for
	// connections that are ending, by any goroutine, and must not block.
	Judge func(f *Flow) error

	mu      sync.Mutex
	open    []*Relay     // each knows its place
	changes atomic.Int64 // calls of JudgeAll; written under mu
}

// JudgeAll is called once new rules are in force. It judges all connections, resets those that
// are not allowed any more with CodePolicy, and returns their number. One that is being dialed
// is judged as it opens. The lock is held only to copy the list, which takes some microseconds
// for 10,000.
func (fs *Flows) JudgeAll() (ended int) {
	if fs == nil {
		return 0
	}
	fs.mu.Lock()
	fs.changes.Add(1)
	open := slices.Clone(fs.open)
	fs.mu.Unlock()
	for _, r := range open {
		if fs.reset(r) {
			ended++
		}
	}
	return ended
}

// reset resets a connection that is not allowed any more, and reports whether it is one.
func (fs *Flows) reset(r *Relay) bool {
	why := fs.Judge(r.Flow)
	if why != nil {
		r.abort(&ResetError{Code: CodePolicy, Err: why})
	}
	return why != nil
}

// now returns the number of calls of JudgeAll so far. It is taken before a dial is judged.
func (fs *Flows) now() int64 {
	if fs == nil {
		return 0
	}
	return fs.changes.Load()
}

// enter adds a connection that was judged after so many calls of JudgeAll.
func (fs *Flows) enter(r *Relay, since int64) {
	if fs == nil {
		return
	}
	fs.mu.Lock()
	r.place = len(fs.open)
	fs.open = append(fs.open, r)
	changed := fs.changes.Load() != since
	fs.mu.Unlock()
	if changed {
		fs.reset(r)
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
