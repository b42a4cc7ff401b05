package observe

import (
	"context"
	"net"
	"net/http"
	"sync"

	"konnectivity/internal/admission"
)

const (
	// maxConns is ample for scrapers, probes and a few browsers. Beyond it, or
	// beyond the limits of descriptors and bytes, a newcomer replaces the
	// connection whose last request is longest ago. Peers of this port never
	// authenticate, so this keeps any of them from using up the process's
	// descriptors or memory, or from keeping probes out, be it by silence or by
	// not reading answers.
	maxConns = 256
	maxBytes = 8 << 20

	// silentBytes is the cost of a connection with net/http's two buffers and a
	// goroutine, requestBytes that of one with a request. What the client sends
	// adds to it, times readWeight.
	silentBytes  = 14 << 10
	requestBytes = 20 << 10
	readWeight   = 3
)

// listener limits how many connections of Listener are open, and what they
// hold.
type listener struct {
	net.Listener
	ctx      context.Context
	acceptor admission.Acceptor
	slots    *admission.Slots[*conn]
}

func newSlots() *admission.Slots[*conn] {
	return admission.NewSlots[*conn](admission.Limits{
		Waiting: admission.AtMost(maxConns, admission.ShareOut(admission.Descriptors()).Observers), Bytes: maxBytes, Each: silentBytes,
	})
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.acceptor.Accept(l.ctx, l.Listener)
		if err != nil {
			return nil, err
		}
		held := &conn{Conn: c, slots: l.slots, base: silentBytes}
		held.release = sync.OnceFunc(func() { l.slots.Release(held) })
		if ok, _ := l.slots.Take(held, c.RemoteAddr()); ok {
			return held, nil
		}
		_ = c.Close()
	}
}

type connKey struct{}

// serving calls handler for complete requests; until then a connection counts
// as silent, however many bytes of a header it has sent.
func (l *listener) serving(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		c.weigh(requestBytes)
		if !l.slots.Renew(c) {
			panic(http.ErrAbortHandler) // evicted as its request arrived
		}
		handler.ServeHTTP(w, r)
	})
}

// connState follows net/http, which frees what it kept for a request at its
// end.
func (l *listener) connState(c net.Conn, state http.ConnState) {
	if state == http.StateIdle {
		c.(*conn).forget()
	}
}

// conn is a connection that has a slot.
type conn struct {
	net.Conn
	admission.Slot
	slots   *admission.Slots[*conn]
	release func()

	mu   sync.Mutex // net/http also reads in the background
	base int64      // what it costs in addition
	read int64      // what its client has sent of the present request
}

// Read counts the bytes that net/http keeps.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.read += int64(n)
		c.slots.Weigh(c, c.base+readWeight*min(c.read, maxHeaderBytes))
	}
	return n, err
}

// weigh records that the bytes read are a complete request.
func (c *conn) weigh(base int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = base
	c.slots.Weigh(c, base+readWeight*min(c.read, maxHeaderBytes))
}

// forget records that the request is over.
func (c *conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.read = silentBytes, 0
	c.slots.Weigh(c, silentBytes)
}

// Abandon implements admission.Holder. net/http sees the end and calls Close.
func (c *conn) Abandon() { _ = c.Conn.Close() }

// Close gives the slot back too.
func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
