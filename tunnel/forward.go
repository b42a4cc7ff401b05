package tunnel

import (
	"context"
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
	// Serve is described at Forwarder.Serve.
	Serve(ctx context.Context, flow *Flow, answer Answer, ended func(error))
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, flow *Flow, answer Answer, ended func(error))

// Serve calls h.
func (h HandlerFunc) Serve(ctx context.Context, flow *Flow, answer Answer, ended func(error)) {
	h(ctx, flow, answer, ended)
}

// Forward has h serve a connection, and waits for its end. It returns the outcome.
func Forward(ctx context.Context, h Handler, flow *Flow, answer Answer) error {
	over := make(chan error, 1)
	h.Serve(ctx, flow, answer, func(err error) { over <- err })
	return <-over
}

// Forwarder does what every front does with a request: dial the destination,
// answer the client in the front's own protocol, relay until both are done.
// Its fields must not change while it is in use; it may serve any number of
// goroutines.
type Forwarder struct {
	Dialer Dialer

	DialTimeout time.Duration // 0 means DefaultDialTimeout
	Idle        time.Duration // of every Relay
	Total       *Totals       // where set, the bytes of all flows are added to it as they pass
	Paces       *Paces        // where set, all relays are held to them together
	Flows       *Flows        // where set, all connections are among them while they are open
	Observers   []Observer
}

// Answer tells the client how the dial ended, err being nil or the dialer's
// error, and returns the client's side of the relay. It may return an error
// to give the connection up; after a failed dial its results are not used.
type Answer func(far Conn, err error) (near Conn, _ error)

// Serve serves one connection, which flow tells of. ended is called once, with nil when it
// has ended in order, else with the reason: before Serve returns or later, on any goroutine.
// Serve blocks until the dial is answered, and then for as long as a direction needs its
// goroutine. When ctx ends the dial is cancelled or the connection reset. A far end that
// answer does not want is reset; the near end is closed by the relay, or by answer itself.
func (f *Forwarder) Serve(ctx context.Context, flow *Flow, answer Answer, ended func(error)) {
	since := f.Flows.now()
	relay, err := f.open(ctx, flow, answer)
	if err != nil {
		flow.end()
		ended(err)
		return
	}
	f.Flows.enter(relay, since)
	relay.start(ctx, func(err error) {
		f.Flows.leave(relay)
		f.End(flow, err)
		flow.end()
		ended(err)
	})
}

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
	return &Relay{A: near, B: far, Flow: flow, Paces: f.Paces, Idle: f.Idle}, nil
}

// Begin is Serve's step between a dial that succeeded and the relay, for a
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

// Dial is Serve's first step: it dials what flow asks for within DialTimeout
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
