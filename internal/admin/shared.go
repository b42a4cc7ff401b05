package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"
)

const (
	// rest is the pause after an answer, as a multiple of the time the answer
	// took: however many ask, answers take at most a quarter of one CPU away
	// from carrying bytes, and those to tenants' readers as much again.
	rest = 3

	// keptAnswers bounds the number of answers kept for others. An answer takes
	// at most 300 KiB, and a fortieth of that in practice.
	keptAnswers = 32
)

// shared makes answers one at a time, and each only once for all equal queries
// between two samples: fifty pages cost as much as one.
type shared struct {
	now  func() uint64 // the number of the last sample
	turn chan struct{} // held while an answer is made, and for the rest after it

	mu   sync.Mutex
	kept map[string]*answer
}

// answer is final once done is closed.
type answer struct {
	look uint64
	at   time.Time
	done chan struct{}
	body []byte // nil if nobody waited for it to be made
}

func newShared(now func() uint64) *shared {
	return &shared{now: now, turn: make(chan struct{}, 1), kept: map[string]*answer{}}
}

// get returns the JSON of what make returns, now or for another caller; nil if
// ctx ends first. Any goroutine may call it.
func (s *shared) get(ctx context.Context, key string, make func() any) []byte {
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

// find returns the answer to key that has been or is being made, or else a new
// one for the caller to make.
func (s *shared) find(key string) (a *answer, mine bool) {
	look, now := s.now(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.kept[key]; a != nil && !a.stale(look, now) {
		return a, false
	}
	a = &answer{look: look, at: now, done: make(chan struct{})}
	for k, old := range s.kept {
		if old.stale(look, now) {
			delete(s.kept, k)
		}
	}
	if len(s.kept) < keptAnswers {
		s.kept[key] = a
	}
	return a, true
}

// stale reports whether another sample was taken since. Time counts only for a
// table that does not run.
func (a *answer) stale(look uint64, now time.Time) bool {
	return a.look != look || now.Sub(a.at) >= sampleEvery
}

// fill makes a when its turn has come.
func (s *shared) fill(ctx context.Context, key string, a *answer, make func() any) {
	defer close(a.done)
	defer s.dropEmpty(key, a)
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	start := time.Now()
	// Deferred, since make may panic, which ends this request alone: without the
	// turn, nobody would be answered any more.
	defer func() { time.AfterFunc(rest*time.Since(start), func() { <-s.turn }) }()
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(make()) // cannot fail: plain structs, into memory
	a.body = body.Bytes()
}

// dropEmpty keeps no answer that was not made.
func (s *shared) dropEmpty(key string, a *answer) {
	if a.body != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[key] == a {
		delete(s.kept, key)
	}
}
