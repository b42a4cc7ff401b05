package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"konnectivity/internal/admission"
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

// answers has the answers for the operator and, in a cache of their own, those for the
// readers of tenants: neither delays the other or takes its room.
type answers struct{ all, tenants *answerCache }

func newAnswers(sample func() uint64) *answers {
	return &answers{all: newAnswerCache(sample), tenants: newAnswerCache(sample)}
}

// get returns the answer for the reader of ctx, as answerCache.get does.
func (a *answers) get(ctx context.Context, key string, make func() any) []byte {
	if tenant := ReaderOf(ctx).Tenant; tenant != "" {
		return a.tenants.get(ctx, tenant, key, make)
	}
	return a.all.get(ctx, "", key, make)
}

// answerCache makes answers one at a time, those for several tenants in turn, and only one for
// all equal queries between two samples: fifty open pages cost as much as one.
type answerCache struct {
	sample func() uint64 // number of the last sample
	turns  *admission.Queue
	shared *memory.Shared[question, []byte]
}

// question is a query, and the number of the sample that answers it.
type question struct {
	key    string
	sample uint64
}

func newAnswerCache(sample func() uint64) *answerCache {
	turns := admission.NewQueue(admission.QueueConfig{Precedence: [][]int{{0}}, Limit: 1})
	return &answerCache{sample: sample, turns: turns, shared: memory.NewShared[question, []byte](keptAnswers)}
}

// get returns the JSON of the value that make returns to this or another caller; nil if
// ctx ends first. tenant is the reader's. Any goroutine may call it.
func (s *answerCache) get(ctx context.Context, tenant, key string, make func() any) []byte {
	body, _ := s.shared.Get(ctx, question{key, s.sample()}, func() ([]byte, time.Duration) { return s.answer(ctx, tenant, make) })
	return body
}

// answer makes an answer in its turn; nil: ctx has ended before. How long it is kept counts
// only for a table that does not run.
func (s *answerCache) answer(ctx context.Context, tenant string, make func() any) (text []byte, keep time.Duration) {
	ticket := &admission.Ticket{Source: tenant}
	if s.turns.Wait(ctx, ticket) != nil {
		return nil, 0
	}
	start := time.Now()
	// The turn lasts for the rest, too. Deferred, since a panic of make ends this request alone:
	// a turn that is not given back would block all others.
	defer func() { time.AfterFunc(rest*time.Since(start), func() { s.turns.Done(ticket) }) }()
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(make()) // cannot fail: plain structs, into memory
	return logging.EscapeHidden(body.Bytes()), sampleEvery
}
