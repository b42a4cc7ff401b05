package httpsproxy

import (
	"context"
	"net"
	"time"

	"konnectivity/tunnel"
)

// flow is a plain exchange as observers know connections: open from when it has
// a way to its destination until its response is over. Connections to
// destinations outlive it and are no concern of theirs.
type flow struct {
	asked *tunnel.Request
	relay *tunnel.Relay // for its figures; it never runs
	start time.Time
	over  bool
}

// request is what a dial for the exchange is asked for. One that wants an
// upgrade is told as such from the start.
func (x *exchange) request() *tunnel.Request {
	kind := kindForward
	if asksUpgrade(x.req) != "" {
		kind = kindUpgrade
	}
	return &tunnel.Request{ID: x.line.id, Front: kind, Network: "tcp", Address: x.line.destination, Source: x.client.RemoteAddr()}
}

// opened reports that the exchange goes by conn. A transport that tries again by
// another connection calls it again, which tells nobody.
func (x *exchange) opened(conn net.Conn) {
	if x.flow != nil {
		return
	}
	f := x.server.opts.Connect
	x.flow = &flow{asked: x.request(), start: time.Now(), relay: &tunnel.Relay{A: x.client.Conn, B: tunnel.Wrap(conn), Total: f.Total}}
	x.flow.asked.Next = hopOf(conn)
	for _, o := range f.Observers {
		o.Opened(x.flow.asked, x.flow.relay)
	}
}

// closed reports the end, once.
func (x *exchange) closed(err error) {
	if x.flow == nil || x.flow.over {
		return
	}
	x.flow.over = true
	for _, o := range x.server.opts.Connect.Observers {
		o.Closed(x.flow.asked, x.flow.relay, time.Since(x.flow.start), err)
	}
}

// holding notes whether content waits to be taken by the destination (up) or
// the client.
func (x *exchange) holding(up, held bool) {
	if x.flow != nil {
		x.flow.relay.Holding(up, held)
	}
}

// carried notes how much content went by.
func (x *exchange) carried(up bool, n int) {
	if x.flow != nil {
		x.flow.relay.Carried(up, n)
	}
}

// dialed is a connection of the transport that knows the hop it goes by: it may
// serve many exchanges.
type dialed struct {
	tunnel.Conn
	next string
}

// NetConn is for who looks for what lies below.
func (d *dialed) NetConn() net.Conn { return d.Conn }

// hopOf is the hop that a connection of the transport goes by.
func hopOf(c net.Conn) string {
	if d, ok := tunnel.Under[*dialed](c); ok {
		return d.next
	}
	return ""
}

// dialReport tells observers of a transport's dials, but not of one that its
// request needed no more, having got a connection that came free meanwhile.
type dialReport struct {
	exchange *exchange
	to       []tunnel.Observer
}

// Dialed implements tunnel.Observer.
func (d *dialReport) Dialed(req *tunnel.Request, took time.Duration, err error) {
	if err != nil && d.exchange.finished() && tunnel.FailureOf(err) == tunnel.FailCancelled {
		return
	}
	for _, o := range d.to {
		o.Dialed(req, took, err)
	}
}

// Opened implements tunnel.Observer.
func (d *dialReport) Opened(*tunnel.Request, *tunnel.Relay) {}

// Closed implements tunnel.Observer.
func (d *dialReport) Closed(*tunnel.Request, *tunnel.Relay, time.Duration, error) {}

// dialFunc is http.Transport's.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// forRequests bounds a dial, reports it and lets it end with the request that
// wants it: a Transport would finish it for some later request, and pay for
// clients that have left.
func forRequests(dial dialFunc, connect *tunnel.Forwarder) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		x := ctx.Value(exchangeKey{}).(*exchange) // no other requests use the transport
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(x.ctx, cancel)
		defer stop()
		f := tunnel.Forwarder{
			DialTimeout: connect.DialTimeout,
			Observers:   []tunnel.Observer{&dialReport{x, connect.Observers}},
		}
		var failed error // as it was, for the client's answer
		f.Dialer = tunnel.DialerFunc(func(ctx context.Context, _, _ string) (tunnel.Conn, error) {
			var c net.Conn
			if c, failed = dial(ctx, network, address); failed != nil { // of a customer proxy, address is the proxy's
				return nil, failed
			}
			return tunnel.Wrap(c), nil
		})
		req := x.request()
		c, _ := f.Dial(ctx, req)
		if failed != nil {
			return nil, failed
		}
		return &dialed{c, req.Next}, nil
	}
}
