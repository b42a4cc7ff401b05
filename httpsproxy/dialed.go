package httpsproxy

import (
	"context"
	"net"
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
// adopts it, and counts by itself what it carries. What happens to the link or
// agent below after the dial reaches no exchange's Flow; an exchange hears of it
// only by an error of Conn, or by what it asks Conn.
type dialed struct {
	net.Conn // a tunnel.Conn
	flow     *tunnel.Flow
	received *progress // by reads; stopped after the last one
}

// NetConn returns the connection below.
func (d *dialed) NetConn() net.Conn { return d.Conn }

// Read is for http.Transport.
func (d *dialed) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	d.received.count.Add(1)
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

// Close is for http.Transport.
func (d *dialed) Close() error {
	d.received.stop()
	return d.Conn.Close()
}

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
	return &dialed{c, flow, newProgress()}, nil
}
