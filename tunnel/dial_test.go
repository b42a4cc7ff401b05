package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestAsDialErrorClassifiesByType(t *testing.T) {
	op := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	for _, c := range []struct {
		err  error
		want tunnel.Failure
	}{
		{op(syscall.ECONNREFUSED), tunnel.FailRefused},
		{op(syscall.EHOSTUNREACH), tunnel.FailHostUnreach},
		{op(syscall.ENETUNREACH), tunnel.FailNetUnreach},
		{op(syscall.EMFILE), tunnel.FailExhausted},
		{op(syscall.ETIMEDOUT), tunnel.FailTimeout},
		{op(syscall.ECONNRESET), tunnel.FailReset},
		{op(syscall.EPIPE), tunnel.FailReset}, // connect(2), of a peer that has ended and reset by then
		{&net.DNSError{Err: "no such host", IsNotFound: true}, tunnel.FailNoSuchHost},
		{&net.DNSError{Err: "server misbehaving"}, tunnel.FailResolve},
		{&net.DNSError{Err: "timeout", IsTimeout: true}, tunnel.FailTimeout},
		{context.DeadlineExceeded, tunnel.FailTimeout},
		{fmt.Errorf("wrapped: %w", context.Canceled), tunnel.FailCancelled},
		{&tunnel.ResetError{Code: tunnel.CodeCancelled}, tunnel.FailCancelled},
		{errors.New("connection refused"), tunnel.FailInternal}, // text does not count
		{fmt.Errorf("x: %w", &tunnel.DialError{Failure: tunnel.FailDenied}), tunnel.FailDenied},
	} {
		testutil.Equal(t, tunnel.FailureOf(c.err), c.want, "FailureOf(%v)", c.err)
	}
	testutil.Equal(t, tunnel.AsDialError("", nil) == nil, true, "nil is no failure")
	testutil.Equal(t, tunnel.FailureOf(nil), 0, "the failure of nil")
}

// An error says nothing twice: its cause may say the same as its text, and more.
func TestDialErrorsSayNothingTwice(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: tunnel.Addr{Text: "127.0.0.1:1"}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for want, err := range map[string]*tunnel.DialError{
		"dial a:1: dial tcp 127.0.0.1:1: connect: connection refused":             tunnel.AsDialError("a:1", refused),
		"dial a:1: it is away: dial tcp 127.0.0.1:1: connect: connection refused": {Address: "a:1", Reason: "it is away", Err: refused},
		"dial a:1: it is away":     {Address: "a:1", Reason: "it is away", Err: errors.New("it is away")},
		"dial: connection refused": {Failure: tunnel.FailRefused},
	} {
		testutil.Equal(t, err.Error(), want, "the error")
	}
}

// netError is net.Error, without what linters say of Temporary: libraries ask for it.
type netError interface {
	error
	Timeout() bool
	Temporary() bool
}

// Libraries ask of an error whether it is a net.Error, or which errno it is.
func TestErrorsAreWhatLibrariesLookFor(t *testing.T) {
	const none = syscall.Errno(0)
	for _, c := range []struct {
		err                error
		errno              syscall.Errno
		timeout, temporary bool
	}{
		{&tunnel.DialError{Failure: tunnel.FailRefused}, syscall.ECONNREFUSED, false, false},
		{&tunnel.DialError{Failure: tunnel.FailRefused, Err: errors.New("502")}, syscall.ECONNREFUSED, false, false},
		{&tunnel.DialError{Failure: tunnel.FailHostUnreach}, syscall.EHOSTUNREACH, false, false},
		{&tunnel.DialError{Failure: tunnel.FailNetUnreach}, syscall.ENETUNREACH, false, false},
		{&tunnel.DialError{Failure: tunnel.FailReset}, syscall.ECONNRESET, false, false},
		{&tunnel.DialError{Failure: tunnel.FailTimeout}, none, true, true},
		{&tunnel.DialError{Failure: tunnel.FailUnavailable}, none, false, true},
		{&tunnel.DialError{Failure: tunnel.FailUnavailable, Err: context.DeadlineExceeded}, none, true, true},
		{&tunnel.DialError{Failure: tunnel.FailDenied}, none, false, false},
		{&tunnel.ResetError{Code: tunnel.CodePeerReset}, syscall.ECONNRESET, false, false},
		{&tunnel.ResetError{Code: tunnel.CodeTimeout}, syscall.ECONNRESET, false, false},
	} {
		wrapped := fmt.Errorf("wrapped: %w", c.err)
		errno, _ := errors.AsType[syscall.Errno](wrapped)
		testutil.Equal(t, errno, c.errno, "the errno of %v", c.err)
		testutil.Equal(t, errors.Is(wrapped, c.errno), c.errno != none, "%v is it", c.err)
		network, ok := errors.AsType[netError](wrapped)
		testutil.Requires(t, ok, "%v is no net.Error", c.err)
		testutil.Equal(t, network.Timeout(), c.timeout, "%v is a timeout", c.err)
		testutil.Equal(t, network.Temporary(), c.temporary, "%v is temporary", c.err)
	}
}

// The texts are those of old agents and servers, whose errors are the system's.
func TestGuessFailure(t *testing.T) {
	op := func(err error) string {
		return (&net.OpError{Op: "dial", Net: "tcp", Addr: tunnel.Addr{Text: "10.0.0.1:80"}, Err: os.NewSyscallError("connect", err)}).Error()
	}
	for text, want := range map[string]tunnel.Failure{
		op(syscall.ECONNREFUSED):                                     tunnel.FailRefused,
		op(syscall.EHOSTUNREACH):                                     tunnel.FailHostUnreach,
		op(syscall.ENETUNREACH):                                      tunnel.FailNetUnreach,
		op(syscall.ENETDOWN):                                         tunnel.FailNetUnreach,
		op(syscall.EADDRNOTAVAIL):                                    tunnel.FailNetUnreach,
		op(syscall.EMFILE):                                           tunnel.FailExhausted,
		op(syscall.ENOMEM):                                           tunnel.FailExhausted,
		op(syscall.ETIMEDOUT):                                        tunnel.FailTimeout,
		op(syscall.ECONNRESET):                                       tunnel.FailReset,
		op(syscall.EACCES):                                           tunnel.FailDenied,
		"Dial tcp 10.0.0.1:80: connect: No Route To Host":            tunnel.FailHostUnreach,
		"dial tcp 10.0.0.1:80: i/o timeout":                          tunnel.FailTimeout,
		"dial tcp: lookup foo on 10.0.0.10:53: no such host":         tunnel.FailNoSuchHost,
		"dial tcp: lookup foo on 10.0.0.10:53: server misbehaving":   tunnel.FailResolve,
		"dial tcp: lookup foo: Temporary failure in name resolution": tunnel.FailResolve,
		"dial tcp: address foo: missing port in address":             tunnel.FailBadAddress,
		"dial udp: unknown network bla":                              tunnel.FailBadAddress,
		"dial tcp: address 99999999: invalid port":                   tunnel.FailBadAddress,
		context.DeadlineExceeded.Error():                             tunnel.FailTimeout,
		"timed out waiting for backend dial":                         tunnel.FailTimeout,
		"currently no tunnels available: No agent available":         tunnel.FailNoAgent,
		"something new":                                              tunnel.FailInternal,
	} {
		testutil.Equal(t, tunnel.GuessFailure(text), want, "%q", text)
	}
	// A failure's own words come back as it, but for those that say too little and
	// those that only links tell.
	for f := range tunnel.Failures() {
		if f == tunnel.FailGone || f == tunnel.FailStale {
			continue
		}
		got := tunnel.GuessFailure(f.String())
		testutil.Holds(t, got == f || f == tunnel.FailCancelled || f == tunnel.FailAuth, "%v came back as %v", f, got)
	}
}
