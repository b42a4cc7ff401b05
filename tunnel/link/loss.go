package link

import (
	"errors"
	"fmt"
	"net"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel"
)

// endError is why a link ended other than by a frame. tunnel.LossOf tells the cause.
type endError struct {
	error
	cause tunnel.LossCause
}

func (e *endError) Unwrap() error { return e.error }

// LossCause implements tunnel.Loss.
func (e *endError) LossCause() tunnel.LossCause { return e.cause }

// cutOff is why a link ended whose connection failed with err, or ended without a word.
func cutOff(err error) error { return &endError{err, tunnel.LossCut} }

// ErrDead is why a link ended whose peer sent no frame, or took no bytes, for
// DeadAfter.
var ErrDead error = &endError{errors.New("the peer has been silent, or has read nothing, for too long"), tunnel.LossSilent}

// ErrClosed is why a link ended that was closed on this side.
var ErrClosed error = &endError{fmt.Errorf("link: %w", net.ErrClosed), tunnel.LossLocal}

// errDuplicate is ErrClosed where another link to the same peer is kept instead.
var errDuplicate error = &endError{fmt.Errorf("another link to this peer is kept: %w", ErrClosed), tunnel.LossReplaced}

// violation is a breach of the protocol, which ends the link.
type violation string

func (v violation) Error() string { return "protocol violation: " + string(v) }

// LossCause implements tunnel.Loss.
func (v violation) LossCause() tunnel.LossCause { return tunnel.LossViolated }

// GoAwayError is why a link ended, told by or to the peer.
type GoAwayError struct {
	Code GoAwayCode
	Text string
}

func (e *GoAwayError) Error() string {
	if e.Text == "" {
		return "the peer ended the link: " + e.Code.String()
	}
	return fmt.Sprintf("the peer ended the link: %s: %q", e.Code, e.Text)
}

// LossCause implements tunnel.Loss.
func (e *GoAwayError) LossCause() tunnel.LossCause {
	switch e.Code {
	case GoAwayProtocol:
		return tunnel.LossViolated
	case GoAwayDuplicate:
		return tunnel.LossReplaced
	default:
		return tunnel.LossClosed
	}
}

// LossFields are what a log line says of err, which has ended a link or another
// connection: the error, and the cause if one is known. err must not be nil.
func LossFields(err error) logrus.Fields {
	fields := logrus.Fields{logrus.ErrorKey: err}
	if cause := tunnel.LossOf(err); cause != tunnel.LossUnknown {
		fields["cause"] = cause.Label()
	}
	return fields
}
