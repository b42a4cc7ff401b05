package lanes

import (
	"slices"
	"strings"
	"sync"
	"time"

	"konnectivity/tunnel/link"
)

// lostTime is more than a peer takes to notice by itself that a link is lost.
const lostTime = time.Minute

// Lost are the Groups of a process that were lost a moment ago, or given up in the handshake, which
// their peers may not know. The zero value is none. Any goroutine may use it.
type Lost struct {
	mu  sync.Mutex
	all []lost // the last link.MaxLost
}

// lost is a Group by its id, and when it was.
type lost struct {
	id string
	at time.Time
}

// add names a Group from now on.
func (l *Lost) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all[max(0, len(l.all)+1-link.MaxLost):], lost{id, time.Now()})
}

// IDs are for the HELLO of a link that is made now.
func (l *Lost) IDs() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(one lost) bool { return time.Since(one.at) >= lostTime })
	var ids strings.Builder
	for _, one := range l.all {
		ids.WriteString(one.id)
	}
	return ids.String()
}
