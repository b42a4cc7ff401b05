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

func TestGuessFailure(t *testing.T) {
	for text, want := range map[string]tunnel.Failure{
		"dial tcp 10.0.0.1:80: connect: connection refused":           tunnel.FailRefused,
		"dial tcp: lookup nope.example on 10.0.0.10:53: no such host": tunnel.FailNoSuchHost,
		"dial tcp 10.0.0.1:80: i/o timeout":                           tunnel.FailTimeout,
		"Dial tcp 10.0.0.1:80: connect: No Route To Host":             tunnel.FailHostUnreach,
		"currently no tunnels available: No agent available":          tunnel.FailNoAgent,
		"dial tcp: address x: missing port in address":                tunnel.FailBadAddress,
		"something new": tunnel.FailInternal,
	} {
		testutil.Equal(t, tunnel.GuessFailure(text), want, "%q", text)
	}
	// A failure's own words come back as it, but for those that say too little and
	// those that only links tell.
	for f := range tunnel.Failures() {
		if f == tunnel.FailGone || f == tunnel.FailStale {
			continue
		}
		if got := tunnel.GuessFailure(f.String()); got != f && f != tunnel.FailCancelled && f != tunnel.FailAuth {
			t.Errorf("%v came back as %v", f, got)
		}
	}
}
