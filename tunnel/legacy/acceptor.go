package legacy

import (
	"context"
	"sync"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// acceptor serves the dials of a peer: an agent those of its server, a server the one
// of a frontend.
type acceptor struct {
	mux     *mux
	carrier tunnel.Handler
	ask     func(*client.DialRequest) *tunnel.Flow // what a dial asks for
	nextID  func() int64                           // of connections
	duplex  bool                                   // the peer knows half-close
	single  bool                                   // the stream carries one connection: a frontend's

	ctx    context.Context // of the dials and their connections
	cancel context.CancelCauseFunc
	wg     *sync.WaitGroup // of the same
	done   chan struct{}   // of a single: closed when it can have no connection any more

	mu      sync.Mutex
	shut    bool                // no dial is taken any more
	dialed  bool                // a dial was taken
	dials   map[int64]*accepted // by the peer's number, until the connection ends
	streams int                 // connections and pending dials; some may share a number
}

// accepted is a DIAL_REQ and the connection that it brought. The acceptor's lock
// guards it.
type accepted struct {
	ctx    context.Context // ends with the dial's failure, or when the peer gives it up
	cancel context.CancelCauseFunc
	conn   *conn // nil: pending
}

// errDialClosed ends a dial, or its connection, that the peer has given up.
var errDialClosed = &tunnel.ResetError{Code: tunnel.CodeCancelled}

// handle takes a packet other than DATA.
func (a *acceptor) handle(packet *client.Packet) {
	switch packet.Type {
	case client.PacketType_DIAL_REQ:
		a.dial(packet.GetDialRequest())
	case client.PacketType_DIAL_CLS:
		a.dialClosed(packet.GetCloseDial().GetRandom())
	case client.PacketType_CLOSE_REQ:
		id := packet.GetCloseRequest().GetConnectID()
		if c := a.mux.get(id); c != nil {
			c.closeRequested()
		} else if c := a.mux.get(-id); c == nil || !c.out.answered() {
			a.unknown(id)
		}
	default:
		a.mux.log.Debugf("ignored a %v packet", packet.Type)
	}
}

// unknown answers a packet about a connection that is not there.
func (a *acceptor) unknown(id int64) { a.mux.sender.reply(closeResponse(id, textUnknown)) }

// dial starts to serve a DIAL_REQ.
func (a *acceptor) dial(request *client.DialRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	random := request.GetRandom()
	earlier := a.dials[random]
	refusal := a.refusal(request)
	switch {
	case a.shut:
	case !a.single && earlier != nil && earlier.conn == nil && earlier.ctx.Err() == nil:
		// Upstream's server passes on the numbers that its clients choose, each for
		// itself: one that is in use may come again, but not while it awaits an answer.
		a.mux.log.Debugf("ignored a second dial with the number %d", random)
	case refusal != nil: // a peer that floods with these and does not read goes unanswered
		a.mux.sender.reply(dialResponse(random, 0, dialText(refusal)))
	default:
		d := &accepted{}
		d.ctx, d.cancel = context.WithCancelCause(a.ctx)
		a.dials[random], a.dialed = d, true
		a.streams++
		a.wg.Add(1)
		go a.forward(d, request)
	}
}

// refusal returns why a dial is not even tried, or nil. The address is the dialer's to
// judge.
func (a *acceptor) refusal(request *client.DialRequest) error {
	switch request.GetProtocol() {
	case "tcp", "tcp4", "tcp6":
	default:
		return &tunnel.DialError{Failure: tunnel.FailBadAddress, Reason: "the only protocol served is tcp"}
	}
	switch {
	case a.single && a.dialed:
		return &tunnel.DialError{Failure: tunnel.FailInternal, Reason: "this stream has its connection already; open another"}
	case a.streams >= a.mux.limits.maxConns:
		return &tunnel.DialError{Failure: tunnel.FailExhausted, Reason: "the agent has as many connections as it may have"}
	default:
		return nil
	}
}

// forward serves one dial and its connection, which may end after it has returned.
func (a *acceptor) forward(d *accepted, request *client.DialRequest) {
	flow := a.ask(request)
	a.carrier.Serve(d.ctx, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		return a.answer(d, request, far, err)
	}, func(err error) {
		if err != nil {
			a.mux.log.WithField("id", flow.ID).WithError(err).Debugf("connection to %q ended", flow.Address)
		}
		a.ended(d, request.GetRandom())
	})
}

// ended frees what a dial and its connection took.
func (a *acceptor) ended(d *accepted, random int64) {
	defer a.wg.Done()
	d.cancel(nil)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams--
	if a.dials[random] == d {
		delete(a.dials, random)
	}
	if a.single {
		close(a.done)
	}
}

// answer tells the peer how a dial ended; a server, only if it still waits for that.
func (a *acceptor) answer(d *accepted, request *client.DialRequest, far tunnel.Conn, err error) (tunnel.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cause := context.Cause(d.ctx)
	switch {
	case err != nil && (cause == nil || a.single):
		d.cancel(nil)
		a.mux.sender.tell(dialResponse(request.GetRandom(), 0, dialText(err)))
		return nil, err
	case cause != nil:
		return nil, cause
	}
	c := newServer(a.mux, a.nextID(), a.duplex, request.GetAddress(), d.cancel)
	c.in.block, c.far = a.single, far
	if err := c.announce(request.GetRandom()); err != nil {
		return nil, err
	}
	d.conn = c
	return c, nil
}

// dialClosed is called for DIAL_CLS. It comes for an established connection
// too, where the two crossed, or to reset it.
func (a *acceptor) dialClosed(random int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.dials[random]; d != nil {
		d.cancel(errDialClosed)
	}
}

// shutDown ends the acceptance of dials by a single, which is done if it has taken none.
func (a *acceptor) shutDown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.dialed && !a.shut {
		close(a.done)
	}
	a.shut = true
}
