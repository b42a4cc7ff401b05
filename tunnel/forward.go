package tunnel

import (
	"context"
	"net"
	"time"
)

// DefaultDialTimeout bounds a dial across all hops where nobody said
// otherwise. It is below the 30 s after which kube-apiserver gives up by
// itself, so that the caller hears a cause instead of its own impatience.
const DefaultDialTimeout = 10 * time.Second

// Request is what a front was asked for.
type Request struct {
	ID      string   // follows the connection across hops; see WithID
	Front   string   // who asked: "connect", "grpc", "link", "socks5", ... (a metric label)
	Network string   // "tcp"
	Address string   // host:port
	Source  net.Addr // the client; may be nil

	// Next is by whom the dial went, as its Dialer told by NoteHop; the
	// Forwarder fills it in before it tells Observers. "" if nobody told.
	Next string
}

// Observer is told about every forwarded connection. Its methods are called on
// the connection's own goroutine and must not block.
type Observer interface {
	// Dialed reports a finished dial; err is nil, or what the Dialer said.
	Dialed(req *Request, took time.Duration, err error)
	// Opened reports a connection that starts to carry bytes.
	Opened(req *Request, relay *Relay)
	// Closed reports the end of an opened connection.
	Closed(req *Request, relay *Relay, took time.Duration, err error)
}

// Forwarder does what every front does with a request: dial the destination,
// answer the client in the front's own protocol, relay until both are done.
// Its fields must not change while it is in use; it may serve any number of
// goroutines.
type Forwarder struct {
	Dialer Dialer

	DialTimeout time.Duration // 0 means DefaultDialTimeout
	Linger      time.Duration // see Relay
	Idle        time.Duration // see Relay
	Total       *Traffic      // see Relay
	Observers   []Observer
}

// Answer tells the client how the dial ended, err being nil or the dialer's
// error, and returns the client's side of the relay. It may return an error
// to give the connection up; after a failed dial its results are not used.
type Answer func(far Conn, err error) (near Conn, _ error)

// Forward serves one request and returns when its connection has ended: nil
// when it ended in order, else why not. It blocks for the connection's life.
// When ctx ends the dial is cancelled or the connection reset. A far end that
// answer does not want is reset; the near end is closed by the relay, or by
// answer itself.
func (f *Forwarder) Forward(ctx context.Context, req *Request, answer Answer) error {
	if req.ID == "" {
		req.ID = NewID()
	}
	relay, err := f.open(ctx, req, answer)
	if err != nil {
		return err
	}
	start := time.Now()
	err = relay.Run(ctx)
	f.closed(req, relay, time.Since(start), err)
	return err
}

// open dials and answers. What it and closed need of the stack is theirs alone,
// and not part of what every open connection holds.
func (f *Forwarder) open(ctx context.Context, req *Request, answer Answer) (*Relay, error) {
	far, err := f.dial(WithID(ctx, req.ID), req)
	if err != nil {
		_, _ = answer(nil, err)
		return nil, err
	}
	near, err := answer(far, nil)
	if err != nil {
		_ = far.Reset(&ResetError{Code: CodeCancelled})
		return nil, err
	}
	relay := &Relay{A: near, B: far, Linger: f.Linger, Idle: f.Idle, Total: f.Total}
	for _, o := range f.Observers {
		o.Opened(req, relay)
	}
	return relay, nil
}

func (f *Forwarder) closed(req *Request, relay *Relay, took time.Duration, err error) {
	for _, o := range f.Observers {
		o.Closed(req, relay, took, err)
	}
}

// Dial is Forward's first step, for a front that moves the bytes itself: it
// dials what req asks for within DialTimeout, fills in req.Next and tells
// Observers. An error is a *DialError. It blocks until then, or until ctx ends.
func (f *Forwarder) Dial(ctx context.Context, req *Request) (Conn, error) {
	return f.dial(WithID(ctx, req.ID), req)
}

func (f *Forwarder) dial(ctx context.Context, req *Request) (Conn, error) {
	timeout := f.DialTimeout
	if timeout <= 0 {
		timeout = DefaultDialTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, hop := withHop(ctx)
	start := time.Now()
	far, err := f.Dialer.Dial(ctx, req.Network, req.Address)
	req.Next = hop.name()
	if err != nil {
		err = AsDialError(req.Address, err)
	}
	for _, o := range f.Observers {
		o.Dialed(req, time.Since(start), err)
	}
	return far, err
}
