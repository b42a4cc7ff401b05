package adapters

import (
	"context"
	"net"

	"konnectivity/tunnel"
)

// Route is the way a connection went; a metric label.
type Route string

// The routes.
const (
	RouteTunnel   Route = "tunnel"         // through the server and an agent
	RouteDirect   Route = "direct"         // the bypass
	RouteCustomer Route = "customer_proxy" // through the tunnel to the customer's proxy
	RouteFallback Route = "fallback"       // direct, since the tunnel is deemed down
)

// Trace is what a front can learn about a dial, for its access log and metrics.
// It is filled in before Dial returns, also when it fails.
type Trace struct {
	Route    Route  // "" if the dial failed before a way was chosen
	Resolved string // the address that was dialed (of a proxy: the proxy's), ip:port; "" if the name went out as it is
}

type traceKey struct{}

// WithTrace returns a context whose dial fills in t. One Trace serves one dial.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

func traceOf(ctx context.Context) *Trace {
	if t, ok := ctx.Value(traceKey{}).(*Trace); ok {
		return t
	}
	return new(Trace)
}

// traced is a connection that knows how it was made.
type traced struct {
	tunnel.Conn
	trace Trace
}

// TraceOf tells how a connection of Adapter.Transport was made; the zero Trace
// for any other.
func TraceOf(c net.Conn) Trace {
	if t, ok := tunnel.Under[*traced](c); ok {
		return t.trace
	}
	return Trace{}
}
