package link

import (
	"errors"
	"fmt"
	"net"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel"
)

// ErrDead is why a link ended whose peer sent no frame, or took no bytes, for
// DeadAfter.
var ErrDead = errors.New("the peer has been silent, or has read nothing, for too long")

// ErrClosed is why a link ended that was closed on this side.
var ErrClosed = fmt.Errorf("link: %w", net.ErrClosed)

// errDuplicate is ErrClosed where another link to the same peer is kept instead.
var errDuplicate = fmt.Errorf("another link to this peer is kept: %w", ErrClosed)

// violation is a breach of the protocol, which ends the link.
type violation string

func (v violation) Error() string { return "protocol violation: " + string(v) }

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

// cutError is why a link ended whose connection failed, or ended without a word.
type cutError struct{ err error }

func (e *cutError) Error() string { return e.err.Error() }
func (e *cutError) Unwrap() error { return e.err }

// LossOf names the cause in what Session.Err has returned; LossUnknown for nil, and
// for the error of anything but a link.
func LossOf(err error) tunnel.LossCause {
	var bye *GoAwayError
	var breach violation
	var cut *cutError
	switch {
	case errors.As(err, &bye):
		return bye.Code.loss()
	case errors.As(err, &breach):
		return tunnel.LossViolated
	case errors.As(err, &cut):
		return tunnel.LossCut
	case errors.Is(err, ErrDead):
		return tunnel.LossSilent
	case errors.Is(err, errDuplicate):
		return tunnel.LossReplaced
	case errors.Is(err, ErrClosed):
		return tunnel.LossLocal
	default:
		return tunnel.LossUnknown
	}
}

// LossFields are what a log line says of err, which has ended a link or another
// connection: the error, and the cause if one is known. err must not be nil.
func LossFields(err error) logrus.Fields {
	fields := logrus.Fields{logrus.ErrorKey: err}
	if cause := LossOf(err); cause != tunnel.LossUnknown {
		fields["cause"] = cause.Label()
	}
	return fields
}

// loss is the cause where the peer has sent GOAWAY with this code.
func (c GoAwayCode) loss() tunnel.LossCause {
	switch c {
	case GoAwayProtocol:
		return tunnel.LossViolated
	case GoAwayDuplicate:
		return tunnel.LossReplaced
	default:
		return tunnel.LossClosed
	}
}
