package observe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"

	"konnectivity/internal/admission"
	"konnectivity/internal/tlsreload"
)

const (
	// maxConns is ample for scrapers, probes and a few browsers. Beyond it, or
	// beyond the limits of descriptors and bytes, a new connection replaces the one
	// whose last request is oldest. Peers of this port do not authenticate; without
	// these limits, silent ones or those that do not read answers could use up the
	// process's descriptors or memory, or keep probes out.
	maxConns = 256
	maxBytes = 8 << 20

	// silentBytes is the cost of a connection with net/http's two buffers and a
	// goroutine, requestBytes that of one with a request. Bytes of the client add to
	// it, times readWeight: net/http parses a header as it arrives, and fields of
	// seven bytes take 15 times as much. TLS adds secureBytes and the certificates of
	// the client. An answer adds its size while it is sent, up to maxAnswerBytes, so
	// that a single one always has room.
	silentBytes  = 14 << 10
	requestBytes = 20 << 10
	readWeight   = 15
	secureBytes  = 20 << 10

	maxAnswerBytes = maxBytes / 4

	// maxUnasked bounds the bytes of a client before its request is complete,
	// including a handshake.
	maxUnasked = 2 * maxHeaderBytes
)

// listener limits the number of open connections and their memory.
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
		held := &conn{Conn: c, slots: l.slots}
		if ok, _ := l.slots.Take(held, c.RemoteAddr()); ok {
			return held, nil
		}
		_ = c.Close()
	}
}

type connKey struct{}

// serving calls handler for complete requests. Until then a connection counts as silent,
// however many bytes of a header it has sent.
func (l *listener) serving(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		c.weigh(r.TLS)
		if !l.slots.Renew(c) {
			panic(http.ErrAbortHandler) // evicted as its request arrived
		}
		handler.ServeHTTP(answer{w, c}, r)
	})
}

// answer counts bytes while they are sent.
type answer struct {
	http.ResponseWriter
	conn *conn
}

// Write implements http.ResponseWriter.
func (a answer) Write(p []byte) (int, error) {
	a.conn.sends(len(p))
	defer a.conn.sends(0)
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// connState resets the cost of a connection at the end of a request, when net/http frees
// its memory.
func (l *listener) connState(c net.Conn, state http.ConnState) {
	if state == http.StateIdle {
		below(c).forget()
	}
}

// below returns the connection with a slot, which may be below TLS.
func below(c net.Conn) *conn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return c.(*conn)
}

// conn is a connection with a slot.
type conn struct {
	net.Conn
	admission.Slot
	slots  *admission.Slots[*conn]
	closed sync.Once

	mu     sync.Mutex // net/http also reads in the background
	asked  bool       // the present request is complete
	secure int64      // bytes for TLS
	read   int64      // bytes received of the present request
	sent   int64      // bytes of an answer that wait to be sent
}

// errUnasked ends a connection with more bytes than a handshake and a request have.
var errUnasked = errors.New("more was sent than a handshake and a request have")

// Read counts the bytes, which net/http keeps.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.read += int64(n)
		c.weighLocked()
		if !c.asked && c.read > maxUnasked {
			return 0, errUnasked
		}
	}
	return n, err
}

// weigh records that the request is complete.
func (c *conn) weigh(state *tls.ConnectionState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
	if state != nil {
		c.secure = int64(secureBytes + tlsreload.Weight(state.PeerCertificates))
	}
	c.weighLocked()
}

// sends records the bytes of an answer that wait to be sent.
func (c *conn) sends(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = int64(n)
	c.weighLocked()
}

// forget records the end of the request.
func (c *conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.read = false, 0
	c.weighLocked()
}

func (c *conn) weighLocked() {
	base := int64(silentBytes)
	if c.asked {
		base = requestBytes
	}
	c.slots.Weigh(c, base+c.secure+readWeight*min(c.read, maxHeaderBytes)+min(c.sent, maxAnswerBytes))
}

// Abandon implements admission.Holder. net/http sees the end and calls Close.
func (c *conn) Abandon() { _ = c.Conn.Close() }

// Close gives the slot back too.
func (c *conn) Close() error {
	defer c.closed.Do(func() { c.slots.Release(c) })
	return c.Conn.Close()
}
