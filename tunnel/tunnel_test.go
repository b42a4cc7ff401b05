package tunnel_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

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
		if got := tunnel.FailureOf(c.err); got != c.want {
			t.Errorf("FailureOf(%v) = %v, want %v", c.err, got, c.want)
		}
	}
	if tunnel.AsDialError("", nil) != nil || tunnel.FailureOf(nil) != 0 {
		t.Error("nil is not a failure")
	}
}

func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want tunnel.Code
	}{
		{nil, tunnel.CodeUnknown},
		{syscall.ECONNRESET, tunnel.CodePeerReset},
		{syscall.EPIPE, tunnel.CodePeerReset},
		{io.ErrUnexpectedEOF, tunnel.CodePeerReset},
		{context.Canceled, tunnel.CodeCancelled},
		{os.ErrDeadlineExceeded, tunnel.CodeTimeout},
		{fmt.Errorf("x: %w", &tunnel.ResetError{Code: tunnel.CodeStalled}), tunnel.CodeStalled},
		{errors.New("?"), tunnel.CodeUnknown},
	} {
		if got := tunnel.CodeOf(c.err); got != c.want {
			t.Errorf("CodeOf(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

// A peer may send any code: labels stay few, and each known code has its own.
func TestCodeLabels(t *testing.T) {
	seen := map[string]tunnel.Code{}
	for code := range tunnel.Codes() {
		label := code.Label()
		if other, twice := seen[label]; twice || label == "" || code.String() == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("code %d is labelled %q, code %d too: %v", code, label, other, twice)
		}
		seen[label] = code
		if strings.Contains(code.String(), "code") {
			t.Errorf("code %d has no words of its own: %s", code, code)
		}
	}
	if got := tunnel.Code(999).Label(); seen[got] != tunnel.CodeUnknown {
		t.Errorf("an unknown code is labelled %q", got)
	}
	if got := tunnel.Code(999).String(); !strings.Contains(got, "999") {
		t.Errorf("an unknown code reads %q", got)
	}
}

func TestSplitAddress(t *testing.T) {
	for address, want := range map[string]string{
		"example.com:80": "example.com 80", "[::1]:443": "::1 443", "10.0.0.1:65535": "10.0.0.1 65535",
		"my_host.:1": "my_host. 1", "bücher.example:1": "bücher.example 1", "[fe80::1%eth0]:1": "fe80::1%eth0 1",
	} {
		host, port, err := tunnel.SplitAddress(address)
		if got := fmt.Sprint(host, " ", port); err != nil || got != want {
			t.Errorf("SplitAddress(%q) = %q, %v, want %q", address, got, err, want)
		}
	}
	for _, address := range []string{
		"", "host", ":80", "host:", "host:0", "host:65536", "host:000080", "host:-1", "host:http", "::1:80", "ho st:80", "ho\x00st:80", "..:80",
		"user@host:80", "host/path:80", strings.Repeat("a", 254) + ":80", "host:+1", "h\xbdst:80",
		"[host:8090]:80", "[1:2]:80",
	} {
		if _, _, err := tunnel.SplitAddress(address); tunnel.FailureOf(err) != tunnel.FailBadAddress {
			t.Errorf("SplitAddress(%q): %v, want a bad address", address, err)
		}
	}
}

func TestChunkSharing(t *testing.T) {
	whole := tunnel.NewChunk(100)
	copy(whole.Bytes(), "header--payload")
	part := whole.Share(8, 15, 8)
	whole.Release()
	if string(part.Bytes()) != "payload" {
		t.Fatalf("shared part reads %q", part.Bytes())
	}
	frame, ok := part.WithHeader(8)
	if !ok || string(frame) != "header--payload" {
		t.Fatalf("with header: %q, %v", frame, ok)
	}
	if _, ok := part.WithHeader(9); ok {
		t.Error("a header may not reach into bytes of another chunk")
	}
	part.Release()
	defer func() {
		if recover() == nil {
			t.Error("a second Release must not go unnoticed")
		}
	}()
	part.Release()
}

type countFree struct{ freed int }

func (c *countFree) Free() { c.freed++ }

func TestBorrowedChunkIsGivenBackOnce(t *testing.T) {
	owner := &countFree{}
	memory := []byte("somebody's memory")
	whole := tunnel.BorrowChunk(memory, owner)
	part := whole.Share(11, 17, 8)
	whole.Slice(0, 8).Release()
	if owner.freed != 0 {
		t.Fatal("given back while a part is held")
	}
	if string(part.Bytes()) != "memory" || part.Size() != len(memory) {
		t.Errorf("part reads %q of %d", part.Bytes(), part.Size())
	}
	for _, c := range []tunnel.Chunk{part, part.Slice(3, 6)} {
		if _, ok := c.WithHeader(1); ok {
			t.Error("borrowed memory may not be written to, not even before a part of it")
		}
	}
	part.Release()
	if owner.freed != 1 {
		t.Errorf("given back %d times, want once", owner.freed)
	}
}

func TestWrapKeepsConns(t *testing.T) {
	near, _ := tcpPair(t)
	c := tunnel.Wrap(near)
	if tunnel.Wrap(c) != c {
		t.Error("wrapping a Conn again changed it")
	}
	if !c.Out().Nonblocking() {
		t.Error("a TCP connection takes bytes on the spot")
	}
}

// resetConn notes with what it was reset.
type resetConn struct {
	tunnel.Conn
	cause error
}

func (c *resetConn) Reset(cause error) error { c.cause = cause; return c.Conn.Reset(cause) }

func TestResetGoesThroughTLSInsideATunnel(t *testing.T) {
	near, _ := tcpPair(t)
	under := &resetConn{Conn: tunnel.Wrap(near)}
	_ = tunnel.Wrap(tls.Client(under, &tls.Config{})).Reset(io.ErrUnexpectedEOF)
	if under.cause != io.ErrUnexpectedEOF {
		t.Errorf("the conn under TLS was reset with %v", under.cause)
	}
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
		if got := tunnel.GuessFailure(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
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
