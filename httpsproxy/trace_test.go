package httpsproxy

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// The id of a request's client is the id of its dial: of CONNECT, of a plain
// request and of an upgraded one; what is no trace-id is replaced.
func TestTraceParentFollowsTheDial(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	ids, parents := make(chan string, 1), make(chan uint64, 2)
	target := testutil.Echo(t)
	origin := startOrigin(t, hello)
	p := startProxy(t, func(o *Options) {
		o.Forwarder.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			ids <- f.ID
			return dialTCP(ctx, f)
		})
		o.Forward = o.Forwarder.Dialer
		o.Forwarder.Observers = append(o.Forwarder.Observers, tracer{parents: parents})
	})
	for parent, kept := range map[string]bool{
		"00-" + trace + "-b7ad6b7169203331-01": true,
		"00-" + trace + "-0000000000000000-01": false,
		trace:                                  false,
	} {
		for kind, request := range map[string]string{
			"CONNECT": fmt.Sprintf("CONNECT %s HTTP/1.1\r\nTraceparent: %s\r\n\r\n", target, parent),
			"GET":     fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: x\r\ntraceparent: %s\r\nConnection: close\r\n\r\n", origin, parent),
		} {
			w := dialWire(t, p.addr)
			w.send("%s", request)
			if kind == "GET" {
				_, _ = io.Copy(io.Discard, w.r)
			} else {
				w.head()
			}
			p.transport.CloseIdleConnections()
			id, span := receive(t, "the dial's id", ids), receive(t, "its parent", parents)
			testutil.Holds(t, (id == trace) == kept && id != "" && (span == 0xb7ad6b7169203331) == kept,
				"%s with %q runs under %q and %x", kind, parent, id, span)
		}
	}
}

// tracer tells the parents of dials that begin.
type tracer struct {
	tunnel.Observer
	parents chan uint64
}

func (tr tracer) Trace(f *tunnel.Flow) { tr.parents <- f.Span.Parent }

func (tracer) Dialed(*tunnel.Flow, time.Duration, error) {}

func (tracer) Unanswered(*tunnel.Flow, time.Duration, error) {}

func (tracer) Opened(*tunnel.Flow) {}

func (tracer) Closed(*tunnel.Flow, time.Duration, error) {}
