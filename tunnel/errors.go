package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"syscall"
)

// Code is why a connection was reset. The numbers are those of RESET frames
// (docs/link-protocol.md) and never change meaning.
type Code uint16

// The reasons a connection can be reset for.
const (
	CodeUnknown   Code = 0  // no reason known or given
	CodePeerReset Code = 1  // the TCP peer at the far end sent RST
	CodeCancelled Code = 2  // its opener gave up
	CodeTimeout   Code = 3  // idle or half-closed for too long
	CodeStalled   Code = 4  // its reader did not keep up and an old peer has no credit
	CodeLost      Code = 5  // the link or agent that carried it is gone
	CodeShutdown  Code = 6  // a process on the way is shutting down
	CodeProtocol  Code = 7  // a peer broke the protocol
	CodeMemory    Code = 8  // the memory budget of a process on the way is used up
	CodeGone      Code = 9  // the process at the other end went, and the connection with it
	CodePolicy    Code = 10 // it was allowed once, and is not any more

	codeEnd = iota // stays last: one more than the last code
)

// Codes are all reasons, in the order of their numbers.
func Codes() iter.Seq[Code] { return between(CodeUnknown, codeEnd) }

// Known reports whether c is one of Codes. A peer may send any.
func (c Code) Known() bool { return c < codeEnd }

// between returns the numbers from first to the one before end.
func between[N ~uint8 | ~uint16](first, end N) iter.Seq[N] {
	return func(yield func(N) bool) {
		for n := first; n < end && yield(n); n++ {
		}
	}
}

// name is what a number of an enumeration is called: as the value of a metric's label, and
// in a few words.
type name struct{ label, text string }

// nameOf returns the name of n. A number that is not in the table, which a peer may send, has
// the label other, and the words of format.
func nameOf[N ~uint8 | ~uint16](table []name, n N, other, format string) name {
	if int(n) < len(table) && table[n] != (name{}) {
		return table[n]
	}
	return name{other, fmt.Sprintf(format, uint16(n))}
}

// codeTable holds the name of each code in metrics and sentences.
var codeTable = [codeEnd]name{
	CodeUnknown:   {"other", "reset without a reason"},
	CodePeerReset: {"peer_reset", "reset by the far end"},
	CodeCancelled: {"cancelled", "given up by its opener"},
	CodeTimeout:   {"idle", "idle for too long"},
	CodeStalled:   {"stalled", "its reader stalled for too long"},
	CodeLost:      {"lost", "the tunnel that carried it was lost"},
	CodeShutdown:  {"shutdown", "a process on the way shut down"},
	CodeProtocol:  {"protocol", "a peer broke the protocol"},
	CodeMemory:    {"memory", "the memory budget was used up"},
	CodeGone:      {"gone", "the process at its other end is gone"},
	CodePolicy:    {"policy", "not allowed any more"},
}

// String returns the code in a few words.
func (c Code) String() string { return c.name().text }

// Label returns the code as a value of a metric's label. There are few, whatever
// code a peer sends.
func (c Code) Label() string { return c.name().label }

func (c Code) name() name { return nameOf(codeTable[:], c, "other", "reset with code %d") }

// ResetError is what reads and writes return once a connection was reset from
// either end. It is a net.Error, errors.Is and errors.As find syscall.ECONNRESET in it, and
// errors.Is net.ErrClosed for LossLocal. Its text begins with ECONNRESET's, but for LossLocal:
// libraries look for that, such as client-go, which otherwise lists everything anew.
type ResetError struct {
	Code Code
	Loss LossCause // of CodeLost: why, as far as this process knows. LossLocal: it closed the tunnel
	Err  error     // of CodePolicy, where it was judged: why, for logs only; else nil
}

func (e *ResetError) Error() string {
	text := "connection reset by peer: " + e.Code.String()
	switch e.Loss {
	case LossUnknown:
	case LossLocal: // Code is what peers are told
		text = "connection reset: this process closed the tunnel that carried it"
	default:
		text += ": " + e.Loss.String()
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// LossCause implements Loss.
func (e *ResetError) LossCause() LossCause { return e.Loss }

// Unwrap returns Err.
func (e *ResetError) Unwrap() error { return e.Err }

// Is makes a ResetError count as ECONNRESET, and for LossLocal as net.ErrClosed, too.
func (e *ResetError) Is(target error) bool {
	return target == syscall.ECONNRESET || target == net.ErrClosed && e.Loss == LossLocal
}

// As makes a ResetError an ECONNRESET.
func (e *ResetError) As(target any) bool { return setErrno(target, syscall.ECONNRESET) }

// Timeout implements net.Error: no reset is one, since a caller that waits for longer after a
// timeout would wait forever.
func (e *ResetError) Timeout() bool { return false }

// Temporary implements net.Error.
func (e *ResetError) Temporary() bool { return false }

// CodeOf finds the code that tells a peer about cause.
func CodeOf(cause error) Code {
	var reset *ResetError
	var timeout interface{ Timeout() bool }
	switch {
	case cause == nil:
		return CodeUnknown
	case errors.As(cause, &reset):
		return reset.Code
	case isReset(cause), errors.Is(cause, io.ErrUnexpectedEOF):
		return CodePeerReset
	case errors.Is(cause, context.Canceled):
		return CodeCancelled
	case errors.As(cause, &timeout) && timeout.Timeout():
		return CodeTimeout
	default:
		return CodeUnknown
	}
}
