package legacy

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// frontend is one Proxy stream and its connection.
type frontend struct {
	service *ProxyService
	from    *tunnel.Client // nil: unknown
	mux     *mux
	gone    <-chan struct{} // the gRPC stream is dead
	source  net.Addr

	ctx    context.Context // of the dial and its connection
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing more can happen

	mu     sync.Mutex
	dialed bool
	shut   bool // no dial is taken any more
	random int64
	conn   *conn
	far    tunnel.Conn
}

// hasten tells c that nobody waits for an answer, if c or what lies under it
// would otherwise wait for one after CloseWrite.
func hasten(c tunnel.Conn) {
	if h, ok := tunnel.Under[*conn](c); ok {
		h.hasten()
	}
}

func newFrontend(from *tunnel.Client, s *ProxyService, stream grpc.ServerStream) *frontend {
	f := &frontend{service: s, from: from, gone: stream.Context().Done(), done: make(chan struct{})}
	f.mux = newMux(timedSend(stream.SendMsg, s.cfg.Metrics), FromClient, ToClient, s.cfg.Limits.of(from), s.cfg.Metrics, s.cfg.LogOf(stream.Context()))
	if info, ok := peer.FromContext(stream.Context()); ok {
		f.source = info.Addr
		f.mux.remoteAddr = info.Addr.String()
	}
	// A client that ends its stream right after CLOSE_REQ must not take along
	// what it wrote before.
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(stream.Context()))
	return f
}

// wait returns when the stream has nothing more to do.
func (f *frontend) wait(end <-chan struct{}, read <-chan error) (err error) {
	defer f.cancel(nil)
	idle := time.AfterFunc(firstDial, f.close)
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
			f.close()
		}
	}
}

// close ends the acceptance of dials. If there was none, nothing can happen any
// more.
func (f *frontend) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dialed && !f.shut {
		close(f.done)
	}
	f.shut = true
}

func (f *frontend) current() *conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conn
}

// hungUp is called when the client ended its direction of the stream. It can
// send no CLOSE_REQ any more, so this counts as one.
func (f *frontend) hungUp() {
	f.close()
	if c := f.current(); c != nil {
		f.clientClosed(c)
	} else {
		f.cancel(errDialClosed)
	}
}

// broken is called when the stream is dead. What the client wrote before an
// orderly close still goes its way.
func (f *frontend) broken() {
	f.close()
	if c := f.current(); c == nil || !c.orphaned() {
		f.cancel(errDialClosed)
	}
}

// clientClosed is called for CLOSE_REQ: with the real client, whose Close it
// is, that means both directions.
func (f *frontend) clientClosed(c *conn) {
	c.peerEnds()
	f.mu.Lock()
	far := f.far
	f.mu.Unlock()
	hasten(far)
}

func (f *frontend) unknown(id int64) { f.mux.sender.reply(closeResponse(id, textUnknown)) }

func (f *frontend) handle(packet *client.Packet) {
	switch packet.Type {
	case client.PacketType_DIAL_REQ:
		f.dial(packet.GetDialRequest())
	case client.PacketType_DIAL_CLS:
		f.dialClosed(packet.GetCloseDial().GetRandom())
	case client.PacketType_CLOSE_REQ:
		id := packet.GetCloseRequest().GetConnectID()
		if c := f.mux.get(id); c != nil {
			f.clientClosed(c)
		} else {
			f.unknown(id)
		}
	default:
		f.mux.log.Debugf("ignored a %v packet", packet.Type)
	}
}

func (f *frontend) dial(request *client.DialRequest) {
	random := request.GetRandom()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.shut:
		return
	case f.dialed:
		f.refuse(random, &tunnel.DialError{Failure: tunnel.FailInternal, Reason: "this stream has its connection already; open another"})
		return
	}
	if err := checkNetwork(request); err != nil {
		f.refuse(random, err)
		return
	}
	f.dialed, f.random = true, random
	f.service.wg.Go(func() {
		defer close(f.done)
		f.forward(request)
	})
}

func (f *frontend) refuse(random int64, err error) {
	f.mux.sender.reply(dialResponse(random, 0, dialText(err)))
}

// forward serves the dial and its connection.
func (f *frontend) forward(request *client.DialRequest) {
	flow := &tunnel.Flow{Request: tunnel.Request{Front: "grpc", Network: request.GetProtocol(), Address: request.GetAddress(), Source: f.source, Client: f.from}}
	err := f.service.carrier.Forward(f.ctx, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		return f.answer(flow.Address, far, err)
	})
	if err != nil {
		f.mux.log.WithField("id", flow.ID).WithError(err).Debugf("connection to %q ended", flow.Address)
	}
}

// answer tells the client how its dial ended.
func (f *frontend) answer(address string, far tunnel.Conn, err error) (tunnel.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.mux.sender.tell(dialResponse(f.random, 0, dialText(err)))
		return nil, err
	}
	if cause := context.Cause(f.ctx); cause != nil {
		return nil, cause
	}
	c := newServer(f.mux, f.service.nextID.Add(1), false, address, f.cancel)
	c.in.block = true
	if err := c.announce(f.random); err != nil {
		return nil, err
	}
	f.conn, f.far = c, far
	return c, nil
}

// dialClosed is called for DIAL_CLS, which may cross with the answer.
func (f *frontend) dialClosed(random int64) {
	f.mu.Lock()
	mine := f.dialed && f.random == random
	f.mu.Unlock()
	if mine {
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
