package tunnel

import (
	"context"
	"errors"
	"net"
	"time"
)

// DefaultDialTimeout bounds a dial across all hops unless it is configured. It is
// below the 30 s after which kube-apiserver gives up by
// itself, so that the caller reads a cause instead of its own timeout.
const DefaultDialTimeout = 10 * time.Second

// Observer is told about every forwarded connection. Its methods are called one
// after the other for a connection, not always on the same goroutine, and for
// several at the same time; they must not block.
type Observer interface {
	// Dialed reports a finished dial; err is nil, or what the Dialer said.
	Dialed(f *Flow, took time.Duration, err error)
	// Unanswered reports that a finished dial came to nothing, since its client could
	// not be answered: err.
	Unanswered(f *Flow, took time.Duration, err error)
	// Opened reports a connection that starts to carry bytes.
	Opened(f *Flow)
	// Closed reports the end of an opened connection.
	Closed(f *Flow, took time.Duration, err error)
}

// Tracer is an Observer that is told, too, when a dial begins. It may give the flow a
// Span.ID.
type Tracer interface {
	Observer
	Trace(f *Flow)
}

// Handler makes the connection that a flow asks for, and carries it to its end.
// *Forwarder does that; other Handlers stand before it to count or limit.
type Handler interface {
	// Forward is described at Forwarder.Forward.
	Forward(ctx context.Context, flow *Flow, answer Answer) error
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, flow *Flow, answer Answer) error

// Forward calls h.
func (h HandlerFunc) Forward(ctx context.Context, flow *Flow, answer Answer) error {
	return h(ctx, flow, answer)
}

// Forwarder does what every front does with a request: dial the destination,
// answer the client in the front's own protocol, relay until both are done.
// Its fields must not change while it is in use; it may serve any number of
// goroutines.
type Forwarder struct {
	Dialer Dialer

	Bounds                    // of every relay
	DialTimeout time.Duration // 0 means DefaultDialTimeout
	Total       *Totals       // where set, the bytes of all flows are added to it as they pass
	Paces       *Paces        // where set, all relays are held to them together
	Flows       *Flows        // where set, all connections are among them while they are open
	Observers   []Observer
}

// Answer tells the client how the dial ended, err being nil or the dialer's
// error, and returns the client's side of the relay. It may return an error
// to give the connection up; after a failed dial its results are not used.
type Answer func(far Conn, err error) (near Conn, _ error)

// Forward serves one connection, which flow tells of, and returns when it has
// ended: nil when it ended in order, else why not. It blocks for the
// connection's life, unless Serve has called it and it returns ErrGoesOn. When
// ctx ends the dial is cancelled or the connection reset. A far end that answer
// does not want is reset; the near end is closed by the relay, or by answer
// itself.
func (f *Forwarder) Forward(ctx context.Context, flow *Flow, answer Answer) error {
	since := f.Flows.now()
	relay, err := f.open(ctx, flow, answer)
	if err != nil {
		flow.end()
		return err
	}
	f.Flows.enter(relay, since)
	if leave := flow.leave; leave != nil {
		err = relay.run(ctx, func(err error) {
			f.finish(relay, err)
			leave(err)
		})
	} else {
		err = relay.Run(ctx)
	}
	if err != ErrGoesOn {
		f.finish(relay, err)
	}
	return err
}

// finish ends the relay's flow.
func (f *Forwarder) finish(relay *Relay, err error) {
	f.Flows.leave(relay)
	f.End(relay.Flow, err)
	relay.Flow.end()
}

// Serve has h forward one connection for a front that need not wait for its end. ended is
// called once, with what Forward returns about the end, possibly after Serve has returned
// and on another goroutine.
func Serve(ctx context.Context, h Handler, flow *Flow, answer Answer, ended func(error)) {
	flow.leave = ended
	if err := h.Forward(ctx, flow, answer); err != ErrGoesOn {
		ended(err)
	}
}

// ErrGoesOn is returned by Forward to Serve about a connection that goes on without a
// goroutine of its own.
var ErrGoesOn = errors.New("the connection goes on")

// open dials and answers. It is apart so that the stack which this takes is not
// held for as long as the connection is open.
func (f *Forwarder) open(ctx context.Context, flow *Flow, answer Answer) (*Relay, error) {
	start := time.Now()
	far, err := f.Dial(ctx, flow)
	if err != nil {
		_, _ = answer(nil, err)
		return nil, err
	}
	near, err := answer(far, nil)
	if err != nil {
		_ = far.Reset(&ResetError{Code: CodeCancelled})
		for _, o := range f.Observers {
			o.Unanswered(flow, time.Since(start), err)
		}
		return nil, err
	}
	f.Begin(flow, flow.Far)
	return &Relay{A: near, B: far, Flow: flow, Paces: f.Paces, Bounds: f.Bounds}, nil
}

// Begin is Forward's step between a dial that succeeded and the relay, for a
// front that moves the bytes itself: flow is counted in Total from then on, and
// Observers are told. far is the far end's address; it may be nil. End ends
// what Begin began.
func (f *Forwarder) Begin(flow *Flow, far net.Addr) {
	flow.Far, flow.Opened = far, time.Now()
	flow.total.Store(f.Total)
	for _, o := range f.Observers {
		o.Opened(flow)
	}
}

// End tells Observers that a flow has ended, and why: nil for in order. One that goes on in
// another process has ended in order here.
func (f *Forwarder) End(flow *Flow, err error) {
	if err == ErrSeized {
		err, flow.HandedOver = nil, true
	}
	took := time.Since(flow.Opened)
	for _, o := range f.Observers {
		o.Closed(flow, took, err)
	}
}

// Trace tells Tracers that a dial begins, for a front that does not dial by Dial.
func (f *Forwarder) Trace(flow *Flow) {
	for _, o := range f.Observers {
		if t, ok := o.(Tracer); ok {
			t.Trace(flow)
		}
	}
}

// Dial is Forward's first step: it dials what flow asks for within DialTimeout
// and tells Observers. An error is a *DialError. It blocks until then, or until
// ctx ends.
func (f *Forwarder) Dial(ctx context.Context, flow *Flow) (Conn, error) {
	if flow.ID == "" {
		flow.ID = NewID()
	}
	timeout := f.DialTimeout
	if timeout <= 0 {
		timeout = DefaultDialTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f.Trace(flow)
	start := time.Now()
	far, err := f.Dialer.Dial(ctx, flow)
	if err != nil {
		err = AsDialError(flow.Address, err)
	} else {
		flow.Far = far.RemoteAddr()
	}
	for _, o := range f.Observers {
		o.Dialed(flow, time.Since(start), err)
	}
	return far, err
}
