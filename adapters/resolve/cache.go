package resolve

import (
	"sync"
	"time"
)

const (
	// maxCached bounds the names that are remembered; at some 300 bytes each
	// that is a third of a megabyte.
	maxCached = 1024

	// maxPositive bounds how long an answer is kept whatever its TTL, so that
	// a wrong record of a week does not need a restart.
	maxPositive = 10 * time.Minute

	// maxNegative bounds how long an absence is kept: whoever creates a name
	// because it was missing should not wait long.
	maxNegative = 30 * time.Second

	// defaultNegative is for absences whose zone does not say.
	defaultNegative = 5 * time.Second
)

// cache remembers outcomes until they expire. The zero value is ready.
type cache struct {
	mu    sync.Mutex
	names map[string]cached
}

type cached struct {
	answer  Answer
	err     error // a NotFound; nil with an answer
	expires time.Time
}

func (c *cache) get(name string) (cached, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.names[name]
	if ok && !time.Now().Before(entry.expires) {
		delete(c.names, name)
		return cached{}, false
	}
	return entry, ok
}

// put remembers an outcome for ttl; 0 forgets it.
func (c *cache) put(name string, answer Answer, err error, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ttl = min(ttl, maxPositive); ttl <= 0 {
		delete(c.names, name)
		return
	}
	if c.names == nil {
		c.names = make(map[string]cached)
	}
	if _, known := c.names[name]; !known && len(c.names) >= maxCached {
		c.makeRoom()
	}
	c.names[name] = cached{answer, err, time.Now().Add(ttl)}
}

// makeRoom drops what has expired, or else any one name.
func (c *cache) makeRoom() {
	now := time.Now()
	for name, entry := range c.names {
		if !now.Before(entry.expires) {
			delete(c.names, name)
		}
	}
	for name := range c.names {
		if len(c.names) < maxCached {
			return
		}
		delete(c.names, name)
	}
}

func (c *cache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.names, name)
}
