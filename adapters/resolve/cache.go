package resolve

import (
	"sync"
	"time"
)

// maxCached bounds the keys that are remembered; at some 300 bytes each that
// is a third of a megabyte.
const maxCached = 1024

// Cache remembers outcomes until they expire. The zero value is ready; it may
// be used from any goroutine.
type Cache[V any] struct {
	mu   sync.Mutex
	kept map[string]kept[V]
}

type kept[V any] struct {
	value   V
	err     error
	expires time.Time
}

// Get returns the outcome for key, if it is there and has not expired.
func (c *Cache[V]) Get(key string) (value V, err error, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.kept[key]
	if ok && !time.Now().Before(entry.expires) {
		delete(c.kept, key)
		return value, nil, false
	}
	return entry.value, entry.err, ok
}

// Put remembers an outcome for ttl; 0 or less forgets it.
func (c *Cache[V]) Put(key string, value V, err error, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ttl <= 0 {
		delete(c.kept, key)
		return
	}
	if c.kept == nil {
		c.kept = make(map[string]kept[V])
	}
	if _, known := c.kept[key]; !known && len(c.kept) >= maxCached {
		c.makeRoom()
	}
	c.kept[key] = kept[V]{value, err, time.Now().Add(ttl)}
}

// makeRoom drops expired keys, or any one key if none is.
func (c *Cache[V]) makeRoom() {
	now := time.Now()
	for key, entry := range c.kept {
		if !now.Before(entry.expires) {
			delete(c.kept, key)
		}
	}
	for key := range c.kept {
		if len(c.kept) < maxCached {
			return
		}
		delete(c.kept, key)
	}
}

// Forget drops key.
func (c *Cache[V]) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kept, key)
}
