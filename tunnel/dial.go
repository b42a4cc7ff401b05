package tunnel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"strings"
	"syscall"
)

// Dialer reaches a destination.
//
// Dial blocks until the destination itself has answered, ctx ends or the
// dialer's own bound passes; a Conn that becomes ready too late is closed, not
// leaked. It dials f.Address, host:port where host may be a name, over f.Network,
// which is "tcp" or a narrower kind that the dialer knows, and notes in f what it
// found out; f is its alone until it returns. Errors are a *DialError, possibly
// wrapped. It may be called from any number of goroutines.
type Dialer interface {
	Dial(ctx context.Context, f *Flow) (Conn, error)
}

// DialerFunc is a function that is a Dialer.
type DialerFunc func(ctx context.Context, f *Flow) (Conn, error)

// Dial calls d.
func (d DialerFunc) Dial(ctx context.Context, f *Flow) (Conn, error) { return d(ctx, f) }

// DialerBy is a dialer of the standard library, such as a *net.Dialer or a *tls.Dialer, as a
// Dialer. Its errors are that one's.
func DialerBy(by interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}) Dialer {
	return DialerFunc(func(ctx context.Context, f *Flow) (Conn, error) {
		c, err := by.DialContext(ctx, f.Network, f.Address)
		if err != nil {
			return nil, err
		}
		return Wrap(c), nil
	})
}

// Failure is why a dial failed. The numbers are those of OPENED frames
// (docs/link-protocol.md) and never change meaning.
type Failure uint16

// The ways a dial can fail.
const (
	FailInternal    Failure = 1  // anything without a better name
	FailRefused     Failure = 2  // the destination answered that no one listens
	FailTimeout     Failure = 3  // no answer came in time
	FailHostUnreach Failure = 4  // no route to the host
	FailNetUnreach  Failure = 5  // no route to the network
	FailNoSuchHost  Failure = 6  // the name does not exist
	FailResolve     Failure = 7  // the name could not be looked up just now
	FailDenied      Failure = 8  // a policy forbids the destination
	FailBadAddress  Failure = 9  // not host:port, or a network that is not served
	FailNoAgent     Failure = 10 // no agent is connected that could serve it
	FailAgentLost   Failure = 11 // the agent went away before it answered
	FailExhausted   Failure = 12 // a process on the way is out of file descriptors or memory
	FailUnavailable Failure = 13 // the next hop (server, proxy) cannot be reached
	FailCancelled   Failure = 14 // the caller gave up
	FailAuth        Failure = 15 // a proxy on the way wants authentication
	FailReset       Failure = 16 // the destination reset the connection while it was set up
	FailGone        Failure = 17 // a connection to be resumed is not there, or not any more
	FailStale       Failure = 18 // a connection to be resumed was resumed by a newer request
	FailBound       Failure = 19 // a bound that was set for the caller's cluster is reached; later it may not be

	failureEnd = iota + 1 // stays last: one more than the last failure
)

// Failures are all ways a dial can fail, in the order of their numbers.
func Failures() iter.Seq[Failure] { return between(FailInternal, failureEnd) }

// Known reports whether f is one of Failures. A peer may send any.
func (f Failure) Known() bool { return f >= FailInternal && f < failureEnd }

// failureKind is what a failure is called, the status of an HTTP response to a dial that failed
// so, and the errno of a dial without a tunnel that did.
type failureKind struct {
	name
	status int
	errno  syscall.Errno // 0: none, or no certain one
}

var failureTable = [failureEnd]failureKind{
	FailInternal:    {name{"internal", "internal error"}, 502, 0},
	FailRefused:     {name{"refused", "connection refused"}, 502, syscall.ECONNREFUSED},
	FailTimeout:     {name{"timeout", "i/o timeout"}, 504, 0},
	FailHostUnreach: {name{"host_unreachable", "no route to host"}, 502, syscall.EHOSTUNREACH},
	FailNetUnreach:  {name{"network_unreachable", "network is unreachable"}, 502, syscall.ENETUNREACH},
	FailNoSuchHost:  {name{"no_such_host", "no such host"}, 502, 0},
	FailResolve:     {name{"resolve", "name lookup failed"}, 502, 0},
	FailDenied:      {name{"denied", "destination not allowed"}, 403, 0},
	FailBadAddress:  {name{"bad_address", "bad address"}, 400, 0},
	FailNoAgent:     {name{"no_agent", "no agent available"}, 503, 0},
	FailAgentLost:   {name{"agent_lost", "agent went away"}, 503, 0},
	FailExhausted:   {name{"exhausted", "too many open files"}, 503, 0},
	FailUnavailable: {name{"unavailable", "tunnel unavailable"}, 503, 0},
	FailCancelled:   {name{"cancelled", "cancelled"}, 502, 0},
	FailAuth:        {name{"proxy_auth", "proxy wants authentication"}, 502, 0},
	FailReset:       {name{"reset", "connection reset"}, 502, syscall.ECONNRESET},
	FailGone:        {name{"gone", "the connection to be resumed is over"}, 502, 0},
	FailStale:       {name{"stale", "the connection was resumed by a newer request"}, 502, 0},
	FailBound:       {name{"bound", "bound reached"}, 429, 0},
}

// kind returns that of a number that is not in the table, which a peer may send, too.
func (f Failure) kind() failureKind {
	if f.Known() {
		return failureTable[f]
	}
	return failureKind{name: name{"other", fmt.Sprintf("failure %d", uint16(f))}, status: 502}
}

// String returns the failure in a few words.
func (f Failure) String() string { return f.kind().text }

// Label returns the failure as a value of a metric's label.
func (f Failure) Label() string { return f.kind().label }

// HTTPStatus returns the status of an HTTP response to a dial that failed so.
func (f Failure) HTTPStatus() int { return f.kind().status }

// Retryable says that the dial failed on the way, so another agent or another link may
// try it. The destination may have been asked only where LostInFlight says so. A bound is
// reached whatever the way.
func (f Failure) Retryable() bool {
	return f == FailAgentLost || f == FailExhausted || f == FailUnavailable
}

// DialError is why a destination was not reached. It is a net.Error, and errors.Is and
// errors.As find the errno of a dial without a tunnel: syscall.ECONNREFUSED of FailRefused, for
// example, since libraries look for that.
type DialError struct {
	Failure Failure
	Address string // that was dialed, host:port; may be empty
	Reason  string // one sentence fit for the client: no secrets, no inner addresses
	Err     error  // the cause, for logs only; may be nil

	// LostInFlight says that what carried the dial was lost before it was answered,
	// so the destination may have been asked.
	LostInFlight bool
}

func (e *DialError) Error() string {
	s := "dial"
	if e.Address != "" {
		s += " " + e.Address
	}
	why := e.Text()
	if e.Err != nil {
		cause := e.Err.Error()
		if strings.HasSuffix(cause, why) { // it says the same, and more
			return s + ": " + cause
		}
		why += ": " + cause
	}
	return s + ": " + why
}

// Text returns what a client may read.
func (e *DialError) Text() string {
	if e.Reason != "" {
		return e.Reason
	}
	return e.Failure.String()
}

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// Timeout implements net.Error: the destination, or a process on the way, has not answered in time.
func (e *DialError) Timeout() bool {
	cause, ok := errors.AsType[net.Error](e.Err)
	return e.Failure == FailTimeout || ok && cause.Timeout()
}

// Temporary implements net.Error.
func (e *DialError) Temporary() bool { return e.Timeout() || e.Failure.Retryable() }

// Is makes a DialError count as its errno.
func (e *DialError) Is(target error) bool {
	errno := e.Failure.kind().errno
	return errno != 0 && target == errno
}

// As makes a DialError its errno.
func (e *DialError) As(target any) bool { return setErrno(target, e.Failure.kind().errno) }

// AsDialError returns err as a *DialError; an error of another type is
// classified by what the standard library says of it, never by its text. It
// returns nil for nil.
func AsDialError(address string, err error) *DialError {
	if err == nil {
		return nil
	}
	if typed, ok := errors.AsType[*DialError](err); ok {
		return typed
	}
	return &DialError{Failure: classify(err), Address: address, Err: err}
}

func classify(err error) Failure {
	var dns *net.DNSError
	var addr *net.AddrError
	var timeout interface{ Timeout() bool }
	var reset *ResetError
	switch {
	case errors.Is(err, context.Canceled), errors.As(err, &reset) && reset.Code == CodeCancelled:
		return FailCancelled
	case errors.As(err, &dns) && dns.IsNotFound:
		return FailNoSuchHost
	case IsErrno(err, syscall.ECONNREFUSED):
		return FailRefused
	case IsErrno(err, syscall.EHOSTUNREACH):
		return FailHostUnreach
	case IsErrno(err, syscall.ENETUNREACH, syscall.EADDRNOTAVAIL):
		return FailNetUnreach
	case IsErrno(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM):
		return FailExhausted
	case IsErrno(err, syscall.EACCES, syscall.EPERM):
		return FailDenied
	case isReset(err): // EPIPE, where an end came before it
		return FailReset
	case errors.As(err, &timeout) && timeout.Timeout():
		return FailTimeout
	case errors.As(err, &dns):
		return FailResolve
	case errors.As(err, &addr):
		return FailBadAddress
	default:
		return FailInternal
	}
}

// Elsewhere says whether another link may do better than the one on which a dial failed: it
// failed on the way, or another server may have an agent for it.
func Elsewhere(err error) bool {
	failure := FailureOf(err)
	return failure.Retryable() || failure == FailNoAgent
}

// GoneFirst returns which of two failures counts, of an attempt to go on with a connection by
// several links: that it is gone outweighs what a link before or behind that one has answered.
func GoneFirst(last, err error) error {
	if FailureOf(last) == FailGone {
		return last
	}
	return err
}

// AlsoLost is err, why a dial failed on all links, marked if one of them was lost under it.
func AlsoLost(address string, err error, lost bool) error {
	if !lost || LostInFlight(err) {
		return err
	}
	marked := *AsDialError(address, err) // others may hold the original
	marked.LostInFlight = true
	return &marked
}

// LostInFlight says whether a dial failed because what carried it was lost, here or
// farther on, before it was answered.
func LostInFlight(err error) bool {
	var typed *DialError
	return errors.As(err, &typed) && (typed.LostInFlight || typed.Failure == FailAgentLost)
}

// FailureOf is the failure of any error a Dialer returned; 0 for nil.
func FailureOf(err error) Failure {
	if err == nil {
		return 0
	}
	return AsDialError("", err).Failure
}
