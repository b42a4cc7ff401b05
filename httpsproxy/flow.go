package httpsproxy

import (
	"context"
	"net"
	"time"

	"konnectivity/tunnel"
)

// told is what observers know of an exchange.
type told int

const (
	toldNothing told = iota
	toldOpened
	toldClosed
)

// opened tells observers that the exchange uses conn. To them it is a
// connection from this moment until its response is over; connections to
// destinations outlive it, and observers do not see those. A transport that
// retries on another connection calls it again, without effect.
func (x *exchange) opened(conn net.Conn) {
	if x.told != toldNothing {
		return
	}
	x.told = toldOpened
	if d, ok := tunnel.Under[*dialed](conn); ok {
		x.rec.flow.Adopt(d.flow)
	}
	x.server.Forwarder.Begin(x.rec.flow, conn.RemoteAddr())
}

// closed reports the end, once.
func (x *exchange) closed(err error) {
	if x.told == toldOpened {
		x.told = toldClosed
		x.server.Forwarder.End(x.rec.flow, err)
	}
}

// dialed is a connection of the transport, which may serve many exchanges,
// together with how it was made. To the transport it is only a net.Conn.
//
// flow is that of the dial, and final once dial has returned: an exchange's Flow
// adopts it, and counts by itself what it carries. What happens to the link or
// agent below after the dial reaches no exchange's Flow; an exchange hears of it
// only by an error of Conn, or by what it asks Conn.
type dialed struct {
	net.Conn  // a tunnel.Conn
	flow      *tunnel.Flow
	listening *listening
}

// NetConn returns the connection below.
func (d *dialed) NetConn() net.Conn { return d.Conn }

// dialReport tells observers about a transport's dials, except for a dial that
// its request no longer needed, because another connection became free.
type dialReport struct {
	exchange *exchange
	to       []tunnel.Observer
}

// Dialed implements tunnel.Observer.
func (d *dialReport) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if err != nil && d.exchange.finished() && tunnel.FailureOf(err) == tunnel.FailCancelled {
		return
	}
	for _, o := range d.to {
		o.Dialed(f, took, err)
	}
}

// Opened implements tunnel.Observer.
func (d *dialReport) Opened(*tunnel.Flow) {}

// Closed implements tunnel.Observer.
func (d *dialReport) Closed(*tunnel.Flow, time.Duration, error) {}

// dial is http.Transport's DialContext. It bounds a dial, reports it, and ends
// it with the request that needs it: a Transport would finish it for a later
// request, at a cost for clients that have left.
func (s *Server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	x := ctx.Value(exchangeKey{}).(*exchange) // only such requests use the transport
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(x.ctx, cancel)
	defer stop()
	var failed error // unchanged, for the client's answer
	f := tunnel.Forwarder{
		DialTimeout: s.Forwarder.DialTimeout,
		Observers:   []tunnel.Observer{&dialReport{x, s.Forwarder.Observers}},
		Dialer: tunnel.DialerFunc(func(ctx context.Context, flow *tunnel.Flow) (c tunnel.Conn, _ error) {
			leg := flow.To(address) // for a customer's proxy, the proxy's
			leg.Network = network
			c, failed = s.opts.Forward.Dial(ctx, leg)
			flow.Adopt(leg)
			return c, failed
		}),
	}
	flow := x.rec.flow.To(x.rec.flow.Address)
	c, _ := f.Dial(ctx, flow)
	if failed != nil {
		return nil, failed
	}
	return &dialed{c, flow, newListening()}, nil
}
