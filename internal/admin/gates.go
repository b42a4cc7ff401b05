package admin

import (
	"context"
	"sync"
)

// answers has the answers for the operator and, in a cache of their own, those for the
// readers of tenants: neither delays the other or takes its room.
type answers struct {
	all, tenants *answerCache

	mu    sync.Mutex
	gates map[string]*gate // of tenants with requests
}

// gate admits one request of a tenant at a time.
type gate struct {
	held     chan struct{}
	requests int // that hold the gate or wait for it
}

func newAnswers(sample func() uint64) *answers {
	return &answers{all: newAnswerCache(sample), tenants: newAnswerCache(sample), gates: map[string]*gate{}}
}

// get returns the answer for the reader of ctx, as answerCache.get does. One request of
// a tenant's readers is answered at a time, so that many of them take one place in the
// queue. The gate is open again before the answer is sent, which may take long.
func (a *answers) get(ctx context.Context, key string, make func() any) []byte {
	tenant := ReaderOf(ctx).Tenant
	if tenant == "" {
		return a.all.get(ctx, key, make)
	}
	own := a.enter(tenant)
	defer a.leave(tenant, own)
	select {
	case own.held <- struct{}{}:
		defer func() { <-own.held }()
		return a.tenants.get(ctx, key, make)
	case <-ctx.Done():
		return nil
	}
}

func (a *answers) enter(tenant string) *gate {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.gates[tenant]
	if own == nil {
		own = &gate{held: make(chan struct{}, 1)}
		a.gates[tenant] = own
	}
	own.requests++
	return own
}

func (a *answers) leave(tenant string, own *gate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if own.requests--; own.requests == 0 {
		delete(a.gates, tenant)
	}
}
