package frontend

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// throttlePause is how long nothing of a kind is logged again: what strangers
// on the network can cause must not fill a log.
const throttlePause = time.Minute

// throttle lets one line through a minute, for each message, and says how many
// it kept back. Messages must be few and constant.
type throttle struct {
	mu   sync.Mutex
	last map[string]*throttled
}

type throttled struct {
	at   time.Time
	kept int
}

func (t *throttle) log(log logrus.FieldLogger, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = make(map[string]*throttled)
	}
	seen := t.last[message]
	if seen == nil {
		seen = &throttled{}
		t.last[message] = seen
	}
	if time.Since(seen.at) < throttlePause {
		seen.kept++
		return
	}
	if seen.kept > 0 {
		log = log.WithField("times_since", seen.kept)
	}
	seen.at, seen.kept = time.Now(), 0
	log.Warn(message)
}
