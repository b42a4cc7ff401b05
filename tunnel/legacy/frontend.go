package legacy

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// frontend is one Proxy stream and its connection.
type frontend struct {
	acceptor
	gone <-chan struct{} // the gRPC stream is dead
}

func newFrontend(from *tunnel.Client, s *ProxyService, stream grpc.ServerStream) *frontend {
	ctx := stream.Context()
	m := newMux(timedSend(stream.SendMsg, s.cfg.Metrics), FromClient, ToClient, s.cfg.Limits.of(from), s.cfg.Metrics, s.cfg.LogOf(ctx))
	asks := tunnel.Request{Front: "grpc", Client: from}
	if info, ok := peer.FromContext(ctx); ok {
		asks.Source, m.remoteAddr = info.Addr, info.Addr.String()
	}
	f := &frontend{gone: ctx.Done()}
	f.acceptor = acceptor{
		mux: m, carrier: s.carrier, wg: &s.wg, single: true, done: make(chan struct{}), dials: map[int64]*accepted{},
		nextID: func() int64 { return s.nextID.Add(1) },
		ask: func(r *client.DialRequest) *tunnel.Flow {
			ask := asks
			ask.Network, ask.Address = r.GetProtocol(), r.GetAddress()
			return &tunnel.Flow{Request: ask}
		},
	}
	// A client that ends its stream right after CLOSE_REQ must not take along
	// what it wrote before.
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return f
}

// wait returns when the stream has nothing more to do.
func (f *frontend) wait(end <-chan struct{}, read <-chan error) (err error) {
	idle := time.AfterFunc(firstDial, f.shutDown)
	defer idle.Stop()
	gone := f.gone
	for {
		select {
		case <-f.done:
			return err
		case failure := <-read:
			if failure == nil {
				f.hungUp()
			} else {
				f.broken()
			}
		case <-gone:
			gone = nil
			f.broken()
		case <-end:
			end = nil
			err = errShutdown
			f.cancel(&tunnel.ResetError{Code: tunnel.CodeShutdown})
			f.shutDown()
		}
	}
}

func (f *frontend) current() *conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.dials {
		return d.conn
	}
	return nil
}

// hungUp is called when the client ended its direction of the stream. It can
// send no CLOSE_REQ any more, so this counts as one.
func (f *frontend) hungUp() {
	f.shutDown()
	if c := f.current(); c != nil {
		c.closeRequested()
	} else {
		f.cancel(errDialClosed)
	}
}

// broken is called when the stream is dead. What the client wrote before an
// orderly close still goes its way.
func (f *frontend) broken() {
	f.shutDown()
	if c := f.current(); c == nil || !c.orphaned() {
		f.cancel(errDialClosed)
	}
}

// timedSend tells m how long each packet took to be sent.
func timedSend(send func(any) error, m Metrics) func(any) error {
	return func(packet any) error {
		start := time.Now()
		err := send(packet)
		m.FrontendWrite(time.Since(start))
		return err
	}
}
