package admin

import (
	"context"
	"net/http"
)

// Reader is who asks.
type Reader struct {
	Tenant string // whose part is shown; "": all is
	Proven bool   // by a token or a certificate
}

// Login says who sends a request, by its token or certificate; false refuses it.
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
}

func newReaders(mux *http.ServeMux, shown []string) *readers {
	d := &readers{mux: mux, shown: map[string]bool{"": true}} // "" is what is not found
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
