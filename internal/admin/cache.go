package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"konnectivity/internal/logging"
	"konnectivity/internal/memory"
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
	shared *memory.Shared[question, []byte]
}

// question is a query, and the number of the sample that answers it.
type question struct {
	key    string
	sample uint64
}

func newAnswerCache(sample func() uint64) *answerCache {
	return &answerCache{sample: sample, turn: make(chan struct{}, 1), shared: memory.NewShared[question, []byte](keptAnswers)}
}

// get returns the JSON of the value that make returns to this or another caller; nil if
// ctx ends first. Any goroutine may call it.
func (s *answerCache) get(ctx context.Context, key string, make func() any) []byte {
	body, _ := s.shared.Get(ctx, question{key, s.sample()}, func() ([]byte, time.Duration) { return s.answer(ctx, make) })
	return body
}

// answer makes an answer in its turn; nil: ctx has ended before. How long it is kept counts
// only for a table that does not run.
func (s *answerCache) answer(ctx context.Context, make func() any) (text []byte, keep time.Duration) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, 0
	}
	start := time.Now()
	// Deferred, since a panic of make ends this request alone: a turn that is not
	// given back would block all others.
	defer func() { time.AfterFunc(rest*time.Since(start), func() { <-s.turn }) }()
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(make()) // cannot fail: plain structs, into memory
	return logging.EscapeHidden(body.Bytes()), sampleEvery
}
