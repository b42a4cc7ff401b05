package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Code says why a connection was reset. The numbers are those of RESET frames
// (docs/link-protocol.md) and never change meaning.
type Code uint16

// The reasons a connection can be reset for.
const (
	CodeUnknown   Code = 0 // no reason known or given
	CodePeerReset Code = 1 // the TCP peer at the far end sent RST
	CodeCancelled Code = 2 // whoever opened it gave up
	CodeTimeout   Code = 3 // idle or half-closed for too long
	CodeStalled   Code = 4 // its reader did not keep up and an old peer has no credit
	CodeLost      Code = 5 // the link or agent that carried it is gone
	CodeShutdown  Code = 6 // a process on the way is shutting down
	CodeProtocol  Code = 7 // a peer broke the protocol
	CodeMemory    Code = 8 // the memory budget of a process on the way is used up
)

var codeText = map[Code]string{
	CodeUnknown:   "reset without a reason",
	CodePeerReset: "reset by the far end",
	CodeCancelled: "given up by its opener",
	CodeTimeout:   "idle for too long",
	CodeStalled:   "its reader stalled for too long",
	CodeLost:      "the tunnel that carried it was lost",
	CodeShutdown:  "a process on the way shut down",
	CodeProtocol:  "a peer broke the protocol",
	CodeMemory:    "the memory budget was used up",
}

func (c Code) String() string {
	if s, ok := codeText[c]; ok {
		return s
	}
	return fmt.Sprintf("reset with code %d", uint16(c))
}

// ResetError is what reads and writes return once a connection was reset from
// either end. errors.Is(err, syscall.ECONNRESET) holds for it.
type ResetError struct {
	Code Code
}

func (e *ResetError) Error() string { return "connection reset: " + e.Code.String() }

// Is makes a ResetError count as ECONNRESET.
func (e *ResetError) Is(target error) bool { return target == syscall.ECONNRESET }

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
	case errors.Is(cause, os.ErrDeadlineExceeded), errors.As(cause, &timeout) && timeout.Timeout():
		return CodeTimeout
	default:
		return CodeUnknown
	}
}
