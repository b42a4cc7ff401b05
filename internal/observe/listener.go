package observe

import (
	"context"
	"net"
	"net/http"
	"sync"

	"konnectivity/internal/admission"
)

// listener bounds how many connections of Listener are open.
type listener struct {
	net.Listener
	ctx      context.Context
	acceptor admission.Acceptor
	slots    *admission.Slots[*conn]
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.acceptor.Accept(l.ctx, l.Listener)
		if err != nil {
			return nil, err
		}
		held := &conn{Conn: c}
		held.release = sync.OnceFunc(func() { l.slots.Release(held) })
		if ok, _ := l.slots.Take(held); ok {
			return held, nil
		}
		_ = c.Close() // as many requests as connections may be open are under way
	}
}

type connKey struct{}

// serving is handler for requests that have come whole; until then a connection
// counts as silent, however many bytes of a header it has sent.
func (l *listener) serving(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.slots.Serve(r.Context().Value(connKey{}).(*conn)) {
			panic(http.ErrAbortHandler) // it was evicted as its request came
		}
		handler.ServeHTTP(w, r)
	})
}

// connState follows net/http.
func (l *listener) connState(c net.Conn, state http.ConnState) {
	if state == http.StateIdle {
		l.slots.Await(c.(*conn), func() bool { return false })
	}
}

// conn is a connection that has a slot.
type conn struct {
	net.Conn
	admission.Slot
	release func()
}

// Abandon implements admission.Holder. net/http sees the end and calls Close.
func (c *conn) Abandon() { _ = c.Conn.Close() }

// Close gives the slot back too.
func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
