package admin

import (
	"context"
	"sync"
)

// answers are those to the operator, and apart from them those to the readers of
// tenants: neither waits for the other, nor takes its place among what is kept.
type answers struct {
	all, tenants *shared

	mu    sync.Mutex
	turns map[string]*turn // of tenants whose readers ask just now
}

// turn is held by one reader of a tenant.
type turn struct {
	held  chan struct{}
	asked int // how many hold it, or wait for it
}

func newAnswers(now func() uint64) *answers {
	return &answers{all: newShared(now), tenants: newShared(now), turns: map[string]*turn{}}
}

// get is shared.get for who asks. Of one tenant's readers, one is answered at a
// time: however many ask, one waits where all wait. No turn is held while an
// answer is sent, which a reader may be slow to take.
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

func (a *answers) enter(tenant string) *turn {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.turns[tenant]
	if own == nil {
		own = &turn{held: make(chan struct{}, 1)}
		a.turns[tenant] = own
	}
	own.asked++
	return own
}

func (a *answers) leave(tenant string, own *turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if own.asked--; own.asked == 0 {
		delete(a.turns, tenant)
	}
}
