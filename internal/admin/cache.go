package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"konnectivity/internal/logging"
)

const (
	// rest is the pause after an answer, as a multiple of the time that the answer
	// took. It bounds answers to a quarter of one CPU, however many requests there
	// are, and those for tenants' readers to another quarter.
	rest = 3

	// keptAnswers bounds the cache. An answer takes at most 300 KiB, and a fortieth
	// of that in practice.
	keptAnswers = 32
)

// answerCache makes answers one at a time, and only one for all equal queries between
// two samples: fifty open pages cost as much as one.
type answerCache struct {
	sample func() uint64 // number of the last sample
	turn   chan struct{} // held while an answer is made, and for the rest after it

	mu   sync.Mutex
	kept map[string]*answer
}

// answer is final once done is closed.
type answer struct {
	sample uint64
	at     time.Time
	done   chan struct{}
	body   []byte // nil if no request waited until its turn
}

func newAnswerCache(sample func() uint64) *answerCache {
	return &answerCache{sample: sample, turn: make(chan struct{}, 1), kept: map[string]*answer{}}
}

// get returns the JSON of the value that make returns to this or another caller; nil if
// ctx ends first. Any goroutine may call it.
func (s *answerCache) get(ctx context.Context, key string, make func() any) []byte {
	for {
		a, mine := s.find(key)
		if mine {
			s.fill(ctx, key, a, make)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil
		}
		if a.body != nil || mine {
			return a.body
		}
	}
}

// find returns the answer to key that is made or being made, or else a new one that the
// caller must make.
func (s *answerCache) find(key string) (a *answer, mine bool) {
	sample, now := s.sample(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.kept[key]; a != nil && !a.stale(sample, now) {
		return a, false
	}
	a = &answer{sample: sample, at: now, done: make(chan struct{})}
	for k, old := range s.kept {
		if old.stale(sample, now) {
			delete(s.kept, k)
		}
	}
	if len(s.kept) < keptAnswers {
		s.kept[key] = a
	}
	return a, true
}

// stale reports whether another sample was taken since. The time counts only for a
// table that does not run.
func (a *answer) stale(sample uint64, now time.Time) bool {
	return a.sample != sample || now.Sub(a.at) >= sampleEvery
}

// fill makes the answer a in its turn.
func (s *answerCache) fill(ctx context.Context, key string, a *answer, make func() any) {
	defer close(a.done)
	defer s.dropEmpty(key, a)
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	start := time.Now()
	// Deferred, since a panic of make ends this request alone: a turn that is not
	// given back would block all others.
	defer func() { time.AfterFunc(rest*time.Since(start), func() { <-s.turn }) }()
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(make()) // cannot fail: plain structs, into memory
	a.body = logging.EscapeHidden(body.Bytes())
}

// dropEmpty removes an answer that was not made.
func (s *answerCache) dropEmpty(key string, a *answer) {
	if a.body != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[key] == a {
		delete(s.kept, key)
	}
}
