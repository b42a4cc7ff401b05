package frontend

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// owner is the outcome of the handshake's search for the connection's owner.
type owner struct {
	who any
	err error
}

// Own records in a handshake who owns the connection, or the error for which it has
// no owner, which the log shows instead of the error of TLS. It is for a tls.Config's
// GetConfigForClient, and for functions that it calls while the handshake lasts.
// Elsewhere it records nothing and returns false; then the handshake must fail, or
// the connection would seem to have no owner.
func Own(hello *tls.ClientHelloInfo, who any, err error) (noted bool) {
	m, noted := tunnel.Under[*meter](hello.Conn)
	if noted {
		m.owner.owner = owner{who, err}
	}
	return noted
}

// preface is how an HTTP/2 client, such as gRPC's, begins (RFC 9113 §3.4); four
// bytes distinguish it from everything else.
var preface = []byte("PRI ")

// Conn is an accepted connection, after TLS where there is any. Until Begin it is
// cut by the handshake's deadline, by Drain, or when a newcomer needs its slot.
type Conn struct {
	Conn tunnel.Conn // for writing; for reading, Reader comes first; nil until TLS is done

	// Reader holds the bytes that were read ahead, so it must be read before
	// Conn.
	Reader *bufio.Reader

	admission.Slot

	front  *Frontend
	raw    tunnel.Conn
	remote net.Addr // of the peer; behind a load balancer, known once it has said so
	meter  *meter   // nil without TLS
	state  *tls.ConnectionState
	owner  owner
	limit  io.LimitedReader // below Reader; bounds reading before Begin

	rest func()   // see Go; nil: the handler has served all of it
	ends []func() // see AtEnd

	turn  admission.Ticket // to compute, in the handshake
	extra atomic.Int64     // its weight in addition to TLS and to the bytes read

	mu       sync.Mutex
	standing standing
	allowed  bool // Allow was called
}

// standing is what a connection counts as.
type standing int

const (
	unproven standing = iota // has a slot of the PreAuth
	begun                    // has one of its frontend's slots
	over                     // was rejected, or has been served
)

var errDenied = errors.New("the peer was refused")

var errEvicted = errors.New("the peer had yet to prove itself when others needed its place")

// TLS returns the connection's TLS state; nil: there is no TLS, or the function given to Go
// serves it.
func (c *Conn) TLS() *tls.ConnectionState { return c.state }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Owner returns the owner that Own recorded; nil: none.
func (c *Conn) Owner() any { return c.owner.who }

// Begin ends the handshake of a peer that has proved who it is and said what it
// wants: it lifts the deadline, and neither Drain nor a newcomer cuts the
// connection any more. It returns false if the connection was cut or rejected
// before, or if there is no room for more that have begun. A second call is
// harmless. Any goroutine may call it.
func (c *Conn) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.standing != unproven {
		return c.standing == begun
	}
	f := c.front
	select {
	case f.slots <- struct{}{}:
	default:
		c.countLocked("limit")
		f.cfg.Log.Warn(fmt.Sprintf("%d connections of %s are open, which is the limit; more are refused", cap(f.slots), f.cfg.Name))
		c.cut()
		return false
	}
	if f.cfg.PreAuth.slots.Release(c) {
		<-f.slots
		c.countLocked("evicted")
		return false
	}
	c.standing = begun
	if c.meter != nil {
		c.meter.off.Store(true)
	}
	return c.raw.SetDeadline(time.Time{}) == nil
}

// Go sets the function that serves the rest of the connection once its handler has
// returned, on a goroutine of its own. A handshake needs a stack of 8 KiB or more, which a
// goroutine that waits keeps for as long as it waits; a server of many clusters has thousands
// of connections that do nothing else. Only the handler may call it, once.
func (c *Conn) Go(do func()) { c.rest = do }

// AtEnd adds a call for when the connection has been served; the last one added is
// called first. It is for handlers that call Go, whose deferred calls would come too
// soon. Only handlers may call it, and not from the function given to Go.
func (c *Conn) AtEnd(do func()) { c.ends = append(c.ends, do) }

// serveRest calls the function given to Go, without the TLS state: the peer's certificates
// take 3 KB, and only handlers ask for them.
func (c *Conn) serveRest() {
	c.state = nil
	c.rest()
	c.finish()
}

// Allow gives the peer time d from now on, once, while what it has sent is
// judged.
func (c *Conn) Allow(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.allowed || c.standing != unproven {
		return
	}
	c.allowed = true
	c.front.cfg.PreAuth.slots.Renew(c)
	c.bound(d)
}

// bound sets the deadline of the handshake.
func (c *Conn) bound(d time.Duration) {
	_ = c.raw.SetDeadline(time.Now().Add(d))
	if tunnel.Closed(c.front.drained) {
		c.hurry()
	}
}

// hurry shortens the deadline of a connection that has not begun, for Drain.
func (c *Conn) hurry() { _ = c.raw.SetDeadline(time.Now().Add(drainHandshake)) }

// Weigh sets the cost of a connection that has not begun, in addition to TLS and to
// what it has sent.
func (c *Conn) Weigh(bytes int64) {
	c.extra.Store(bytes)
	c.weigh()
}

func (c *Conn) weigh() {
	bytes := tlsWeight + c.extra.Load()
	if c.meter != nil {
		bytes += readWeight * c.meter.read.Load()
	}
	c.front.cfg.PreAuth.slots.Weigh(c, bytes)
}

// Abandon implements admission.Holder: a newcomer takes the connection's slot.
// With a reset, nothing of it stays in the kernel.
func (c *Conn) Abandon() {
	_ = c.raw.Reset(errEvicted)
	c.front.cfg.PreAuth.turns.Leave(&c.turn)
}

// Whole returns the connection with the bytes read ahead put back in front;
// Reader must not be used any more.
func (c *Conn) Whole() tunnel.Conn {
	head, _ := c.Reader.Peek(c.Reader.Buffered())
	c.Reader = nil // c lasts as long as the connection, and most have read nothing ahead
	return tunnel.Unread(c.Conn, head)
}

// NoRoom rejects the connection since there is no room for it; why is for the log. It does
// nothing if the connection has begun or was rejected before. Any goroutine may call it.
func (c *Conn) NoRoom(why string) { c.turnAway("limit", why) }

// Refuse is NoRoom for a peer that may not come in.
func (c *Conn) Refuse(why string) { c.turnAway("refused", why) }

func (c *Conn) turnAway(reason, why string) {
	if c.count(reason) {
		c.log().WithField("remote", c.remote.String()).Warn("a connection of " + c.front.cfg.Name + " was refused: " + why)
	}
}

// Deny is Refuse where the handler says why itself.
func (c *Conn) Deny() { c.reject(errDenied) }

// Fail rejects the connection since the handshake of its protocol has failed with err.
func (c *Conn) Fail(err error) { c.reject(err) }

// log is where lines about the connection go.
func (c *Conn) log() logrus.FieldLogger {
	if of := c.front.cfg.LogOf; of != nil {
		return of(c.Owner())
	}
	return c.front.cfg.Log
}

// reject counts and logs the connection as one that came to nothing because of err, unless it
// has begun or was rejected before.
func (c *Conn) reject(err error) {
	reason := c.reason(err)
	if c.front.cfg.PreAuth.slots.Evicted(c) {
		reason, err = "evicted", errEvicted
	}
	if c.count(reason) {
		c.logRejected(reason, err)
	}
}

// reason is why the connection came to nothing, as a metric's label.
func (c *Conn) reason(err error) string {
	proxied, shaking := errors.Is(err, errProxyHeader), c.Conn == nil && c.front.tls != nil
	var timeout net.Error
	switch {
	case err == errDenied:
		return "refused"
	case tunnel.Closed(c.front.drained), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return "closed"
	case tunnel.IsErrno(err, syscall.ECONNRESET) && (proxied || !shaking): // as probes of some load balancers end
		return "closed"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case proxied:
		return "proxy"
	case shaking:
		return "tls"
	}
	return "protocol"
}

func (c *Conn) logRejected(reason string, err error) {
	level, what := logrus.DebugLevel, "a connection of "+c.front.cfg.Name+" came to nothing"
	switch reason {
	case "tls":
		level, what = logrus.WarnLevel, "a TLS handshake of "+c.front.cfg.Name+" failed" // perhaps because of a wrong certificate
	case "proxy":
		level, what = logrus.WarnLevel, "a connection of "+c.front.cfg.Name+" has no valid PROXY protocol header"
	}
	if log := c.log(); logging.Enabled(log, level) {
		log.WithError(err).WithField("remote", c.remote.String()).Log(level, what)
	}
}

// count counts the connection as rejected, unless it has begun or was rejected before.
func (c *Conn) count(reason string) (counted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.countLocked(reason)
}

func (c *Conn) countLocked(reason string) (counted bool) {
	if c.standing != unproven {
		return false
	}
	c.standing = over
	c.front.cfg.Metrics.Rejected(c.front.cfg.Name, reason)
	return true
}

// recognise performs the TLS handshake and returns the handler.
func (c *Conn) recognise() (Handler, error) {
	f := c.front
	if f.tls == nil {
		if f.cfg.Owner != nil {
			var err error
			if c.owner.who, err = f.cfg.Owner(); err != nil {
				return nil, err
			}
		}
		c.Conn = c.raw
		return c.sniff()
	}
	state, err := c.shakeHands()
	switch {
	case speaksHTTP(err):
		c.Conn = c.raw
		return refuseHTTP, nil
	case err != nil:
		return nil, err
	}
	switch proto := state.NegotiatedProtocol; {
	case proto == "":
		return c.sniff()
	case proto == f.cfg.LinkALPN && f.cfg.Link != nil:
		c.buffer()
		return f.cfg.Link, nil
	case proto == "h2" && f.cfg.GRPC != nil:
		c.buffer()
		return f.cfg.GRPC, nil
	case proto == "http/1.1" && f.cfg.Connect != nil:
		c.buffer()
		return f.cfg.Connect, nil
	default:
		return nil, errors.New("the protocol " + proto + " was agreed on and is not served")
	}
}

// shakeHands performs the TLS handshake.
func (c *Conn) shakeHands() (*tls.ConnectionState, error) {
	c.meter = &meter{Conn: c.raw, owner: c}
	if err := c.meter.await(); err != nil {
		return nil, err
	}
	if c.front.cfg.Proxies.Contains(c.remote) {
		if err := c.unwrap(); err != nil {
			return nil, err
		}
	}
	c.meter.left.Store(maxHandshake)
	c.meter.turns = c.front.cfg.PreAuth.turns
	if err := c.meter.compute(); err != nil { // before TLS has anything of it: a thousand that come at once wait here
		return nil, err
	}
	c.weigh()
	var conn net.Conn = c.meter
	if prepare := c.front.cfg.Prepare; prepare != nil {
		conn = prepare(conn)
	}
	secure := tls.Server(conn, c.front.tls)
	err := secure.Handshake() // without a context, which would need a goroutine; whatever ends c closes the socket
	c.meter.rest()
	c.meter.turns = nil
	if err != nil {
		return nil, cmp.Or(c.owner.err, uninvited(err))
	}
	c.front.cfg.PreAuth.slots.Renew(c)
	c.meter.left.Store(maxOpening)
	state := secure.ConnectionState()
	c.Conn, c.state = tunnel.Wrap(secure), &state
	return c.state, nil
}

func (c *Conn) buffer() {
	c.limit = io.LimitedReader{R: c.Conn, N: maxHeader}
	c.Reader = bufio.NewReaderSize(&c.limit, readAhead)
}

// sniff distinguishes gRPC from HTTP/1.1 by the first bytes. The link is never
// guessed: only ALPN selects it (docs/link-protocol.md).
func (c *Conn) sniff() (Handler, error) {
	c.buffer()
	f := c.front
	if f.cfg.GRPC == nil && f.cfg.Connect == nil {
		return nil, errors.New("no protocol was chosen by ALPN")
	}
	for n := 1; n <= len(preface); n++ {
		first, err := c.Reader.Peek(n)
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(preface, first) {
			if f.cfg.Connect == nil {
				return nil, errors.New("this is not gRPC")
			}
			return f.cfg.Connect, nil
		}
	}
	if f.cfg.GRPC != nil {
		return f.cfg.GRPC, nil
	}
	return f.cfg.Connect, nil // which answers it with an error
}

// cut ends the connection, even while it is read or written.
func (c *Conn) cut() {
	_ = c.raw.Close()
	c.front.cfg.PreAuth.turns.Leave(&c.turn)
}

// finish frees everything once the connection has been served.
func (c *Conn) finish() {
	defer c.front.cfg.Metrics.Connection(c.front.cfg.Name, -1)
	for _, end := range slices.Backward(c.ends) {
		end()
	}
	c.reject(errUnproven)
	c.mu.Lock()
	was := c.standing
	c.standing = over
	c.mu.Unlock()
	if was == begun { // perhaps only now, by a late stream
		_ = c.Conn.Close()
		<-c.front.slots
		return
	}
	c.front.cfg.PreAuth.slots.Release(c)
	// A peer whose handshake failed gets no goodbye, which could block.
	c.cut()
}

// errUnproven is the error of a connection whose handler returned before Begin.
var errUnproven = fmt.Errorf("the peer did not prove who it is: %w", os.ErrDeadlineExceeded)
