package admin

import (
	"context"
	"net/http"
	"sync"
)

// Reader is who asks.
type Reader struct {
	Tenant string // whose part is shown; "": all is
	Proven bool   // by a token
}

// Login says who sends a request, by its token; false refuses it.
type Login func(*http.Request) (Reader, bool)

// anybody sees all, as where there is no Login.
func anybody(*http.Request) (Reader, bool) { return Reader{}, true }

type readerKey struct{}

// ReaderOf is who sends a request that Handler has let in.
func ReaderOf(ctx context.Context) Reader {
	who, _ := ctx.Value(readerKey{}).(Reader)
	return who
}

// readers lets those who may see one tenant to what is for them: what is not
// known to be is not.
type readers struct {
	mux   *http.ServeMux
	shown map[string]bool // patterns of mux

	mu    sync.Mutex
	turns map[string]*turn // of tenants whose readers ask just now
}

// turn is held by one of them.
type turn struct {
	held  chan struct{}
	asked int // how many hold it, or wait for it
}

func newReaders(mux *http.ServeMux, shown []string) *readers {
	d := &readers{mux: mux, shown: map[string]bool{"": true}, turns: map[string]*turn{}} // "" is what is not found
	for _, pattern := range shown {
		d.shown[pattern] = true
	}
	return d
}

// handle adds what is for all.
func (d *readers) handle(pattern string, h http.Handler) {
	d.shown[pattern] = true
	d.mux.Handle(pattern, h)
}

func (d *readers) may(r *http.Request) bool {
	_, pattern := d.mux.Handler(r)
	return d.shown[pattern]
}

// inTurn has the readers of one tenant answered one after the other: however
// many ask, one waits where all wait.
func (d *readers) inTurn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant := ReaderOf(r.Context()).Tenant
		if tenant == "" {
			next.ServeHTTP(w, r)
			return
		}
		own := d.enter(tenant)
		defer d.leave(tenant, own)
		select {
		case own.held <- struct{}{}:
			defer func() { <-own.held }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}

func (d *readers) enter(tenant string) *turn {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := d.turns[tenant]
	if own == nil {
		own = &turn{held: make(chan struct{}, 1)}
		d.turns[tenant] = own
	}
	own.asked++
	return own
}

func (d *readers) leave(tenant string, own *turn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if own.asked--; own.asked == 0 {
		delete(d.turns, tenant)
	}
}
