package httpsproxy

import (
	"context"
	"net"
	"time"

	"konnectivity/tunnel"
)

// newFlow is what a dial for the exchange is asked for. One that wants an upgrade
// is told as such from the start.
func (x *exchange) newFlow() *tunnel.Flow {
	kind := kindForward
	if asksUpgrade(x.req) != "" {
		kind = kindUpgrade
	}
	return &tunnel.Flow{ID: x.line.id, Front: kind, Network: "tcp", Address: x.line.destination, Source: x.client.RemoteAddr()}
}

// opened tells observers that the exchange goes by conn. To them it is a
// connection from when it has a way to its destination until its response is
// over; connections to destinations outlive it and are no concern of theirs. A
// transport that tries again by another connection calls it again, which tells
// nobody.
func (x *exchange) opened(conn net.Conn) {
	if x.flow != nil {
		return
	}
	x.flow = x.newFlow()
	if d, ok := tunnel.Under[*dialed](conn); ok {
		x.flow.Adopt(d.flow)
	}
	x.server.opts.Connect.Begin(x.flow, conn.RemoteAddr())
}

// closed reports the end, once.
func (x *exchange) closed(err error) {
	if x.flow != nil && !x.flowEnded {
		x.flowEnded = true
		x.server.opts.Connect.End(x.flow, err)
	}
}

// holding notes whether content waits to be taken by the destination (up) or
// the client.
func (x *exchange) holding(up, held bool) {
	if x.flow != nil {
		x.flow.Hold(up, held)
	}
}

// carried notes how much content went by.
func (x *exchange) carried(up bool, n int) {
	if x.flow != nil {
		x.flow.Carry(up, n)
	}
}

// dialed is a connection of the transport that knows how it was made: it may
// serve many exchanges. It is a net.Conn, for the transport, and no more.
type dialed struct {
	conn tunnel.Conn
	flow *tunnel.Flow
}

// NetConn is for who looks for what lies below.
func (d *dialed) NetConn() net.Conn { return d.conn }

func (d *dialed) Read(p []byte) (int, error)         { return d.conn.Read(p) }
func (d *dialed) Write(p []byte) (int, error)        { return d.conn.Write(p) }
func (d *dialed) Close() error                       { return d.conn.Close() }
func (d *dialed) LocalAddr() net.Addr                { return d.conn.LocalAddr() }
func (d *dialed) RemoteAddr() net.Addr               { return d.conn.RemoteAddr() }
func (d *dialed) SetDeadline(t time.Time) error      { return d.conn.SetDeadline(t) }
func (d *dialed) SetReadDeadline(t time.Time) error  { return d.conn.SetReadDeadline(t) }
func (d *dialed) SetWriteDeadline(t time.Time) error { return d.conn.SetWriteDeadline(t) }

// dialReport tells observers of a transport's dials, but not of one that its
// request needed no more, having got a connection that came free meanwhile.
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

// dial is http.Transport's DialContext. It bounds a dial, reports it and lets it
// end with the request that wants it: a Transport would finish it for some later
// request, and pay for clients that have left.
func (s *Server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	x := ctx.Value(exchangeKey{}).(*exchange) // no other requests use the transport
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(x.ctx, cancel)
	defer stop()
	var failed error // as it was, for the client's answer
	f := tunnel.Forwarder{
		DialTimeout: s.opts.Connect.DialTimeout,
		Observers:   []tunnel.Observer{&dialReport{x, s.opts.Connect.Observers}},
		Dialer: tunnel.DialerFunc(func(ctx context.Context, flow *tunnel.Flow) (c tunnel.Conn, _ error) {
			leg := flow.To(address) // of a customer proxy: the proxy's
			leg.Network = network
			c, failed = s.opts.Forward.Dial(ctx, leg)
			flow.Adopt(leg)
			return c, failed
		}),
	}
	flow := x.newFlow()
	c, _ := f.Dial(ctx, flow)
	if failed != nil {
		return nil, failed
	}
	return &dialed{c, flow}, nil
}
