package httpsproxy

import (
	"cmp"
	"context"
	"net"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

// drainResponse is how long a destination that takes no more of a request may be
// silent and still be read from.
const drainResponse = 5 * time.Second

// dialed is a connection of the transport, which may serve many exchanges,
// together with how it was made. To the transport it is only a net.Conn.
//
// flow is that of the dial, and final once dial has returned: an exchange's Flow
// takes its Result, and counts by itself what it carries. What happens to the link or
// agent below after the dial reaches no exchange's Flow; an exchange hears of it
// only by an error of Conn, or by what it asks Conn.
type dialed struct {
	net.Conn // a tunnel.Conn
	flow     *tunnel.Flow
	received *progress   // by reads; stopped after the last one
	secure   atomic.Bool // TLS to a customer's proxy is above: reads return ciphertext, whose header is not seen

	// exchange uses it now; nil: its response is over, or none has used it yet.
	exchange atomic.Pointer[exchange]
}

// NetConn returns the connection below.
func (d *dialed) NetConn() net.Conn { return d.Conn }

// Read is for http.Transport.
func (d *dialed) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.received.count.Add(1)
	if x := d.exchange.Load(); x != nil && err == nil && !d.secure.Load() {
		err = x.weigh(p[:n])
	}
	if err != nil {
		d.received.stop()
	}
	return n, err
}

// Write is for http.Transport, which drops a connection as soon as a write fails,
// and with it the answer of a destination that refuses an upload and hangs up. So
// the error is returned only once the answer was read.
func (d *dialed) Write(p []byte) (int, error) {
	n, err := d.Conn.Write(p)
	if err != nil {
		d.received.stall(nil, drainResponse)
	}
	return n, err
}

// Close is for http.Transport, which then waits for a read of the request's content
// that is under way, and with it for a client that may send nothing before it has its
// answer. So that read is ended.
func (d *dialed) Close() error {
	d.received.stop()
	if x := d.exchange.Load(); x != nil && !x.content.whole() {
		x.client.stopReading()
	}
	return d.Conn.Close()
}

// dial is http.Transport's DialContext. It bounds a dial, and ends it with the
// request that needs it: a Transport would finish it for a later request, at a cost
// for clients that have left. Observers see the dial, unless it ended because
// another connection became free for its request.
func (s *Server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	x := ctx.Value(exchangeKey{}).(*exchange) // only such requests use the transport
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Forwarder.DialTimeout, tunnel.DefaultDialTimeout))
	defer cancel()
	defer context.AfterFunc(x.ctx, cancel)()
	flow := &tunnel.Flow{Request: x.rec.flow.Request, Span: x.rec.flow.Span}
	s.Forwarder.Trace(flow)
	leg := flow.To(address) // for a customer's proxy, the proxy's
	leg.Network = network
	start := time.Now()
	c, err := s.opts.Forward.Dial(ctx, leg)
	flow.TakeResult(leg)
	var seen error // the client's answer needs err as it is
	if err != nil {
		seen = tunnel.AsDialError(flow.Address, err)
	}
	if seen == nil || !x.finished() || tunnel.FailureOf(seen) != tunnel.FailCancelled {
		for _, o := range s.Forwarder.Observers {
			o.Dialed(flow, time.Since(start), seen)
		}
	}
	if err != nil {
		return nil, &failedDial{err, flow}
	}
	if x.finished() && !x.used.Load() { // its client has left
		for _, o := range s.Forwarder.Observers {
			o.Unanswered(flow, time.Since(start), context.Cause(x.ctx))
		}
	}
	return &dialed{Conn: c, flow: flow, received: newProgress()}, nil
}

// failedDial is why dial failed, and on which way.
type failedDial struct {
	error
	flow *tunnel.Flow
}

func (e *failedDial) Unwrap() error { return e.error }
