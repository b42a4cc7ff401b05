package admin

import (
	"context"
	"net/http"
)

// Reader is the sender of a request.
type Reader struct {
	Tenant string // the tenant that the reader may see; "" means all
	Proven bool   // identified by a token or a certificate
}

// Login identifies the sender of a request by its token or certificate; false refuses
// the request.
type Login func(*http.Request) (Reader, bool)

// openLogin is the default Login, which shows everything.
func openLogin(*http.Request) (Reader, bool) { return Reader{}, true }

type readerKey struct{}

// ReaderOf returns the sender of a request that Handler has admitted.
func ReaderOf(ctx context.Context) Reader {
	who, _ := ctx.Value(readerKey{}).(Reader)
	return who
}

// readers restricts the readers of one tenant to the patterns that are known to be for
// them.
type readers struct {
	mux   *http.ServeMux
	shown map[string]bool // patterns of mux for readers of one tenant
}

func newReaders(mux *http.ServeMux, shown []string) *readers {
	d := &readers{mux: mux, shown: map[string]bool{"": true}} // "" is that of 404
	for _, pattern := range shown {
		d.shown[pattern] = true
	}
	return d
}

// handle adds a pattern for all readers.
func (d *readers) handle(pattern string, h http.Handler) {
	d.shown[pattern] = true
	d.mux.Handle(pattern, h)
}

// may reports whether the reader of one tenant may send r.
func (d *readers) may(r *http.Request) bool {
	_, pattern := d.mux.Handler(r)
	return d.shown[pattern]
}
