package httpsproxy

import (
	"net"

	"konnectivity/tunnel"
)

// opened tells observers that the exchange uses conn. To them it is a
// connection from this moment until its response is over; connections to
// destinations outlive it, and observers do not see those. A transport that
// retries on another connection calls it again, without effect.
func (x *exchange) opened(conn net.Conn) {
	d, ok := tunnel.Under[*dialed](conn)
	if ok {
		d.secure.Store(conn != net.Conn(d))
		d.exchange.Store(x)
		x.conn = d
	}
	if x.used.Swap(true) {
		return
	}
	if ok {
		x.rec.flow.TakeResult(d.flow)
	}
	x.server.Forwarder.Begin(x.rec.flow, conn.RemoteAddr())
}

// closed reports the end. It is called once.
func (x *exchange) closed(err error) {
	if x.used.Load() {
		x.server.Forwarder.End(x.rec.flow, err)
	}
}
