package tunnel_test

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestIsErrno(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, c := range []struct {
		err  error
		any  []syscall.Errno
		want bool
	}{
		{nil, []syscall.Errno{syscall.ECONNREFUSED}, false},
		{io.EOF, []syscall.Errno{syscall.ECONNREFUSED}, false},
		{refused, nil, false},
		{refused, []syscall.Errno{syscall.EPIPE}, false},
		{refused, []syscall.Errno{syscall.EPIPE, syscall.ECONNREFUSED}, true},
		{fmt.Errorf("wrapped: %w", refused), []syscall.Errno{syscall.ECONNREFUSED}, true},
		{&tunnel.ResetError{Code: tunnel.CodePeerReset}, []syscall.Errno{syscall.ECONNRESET}, true},
	} {
		if got := tunnel.IsErrno(c.err, c.any...); got != c.want {
			t.Errorf("%v is one of %v: %v, want %v", c.err, c.any, got, c.want)
		}
	}
}

// What a system itself says of a port that refuses has the name it has
// everywhere.
func TestRefusedDialIsFailRefused(t *testing.T) {
	c, err := net.Dial("tcp", testutil.Refusing(t))
	if err == nil {
		c.Close()
	}
	if failure := tunnel.FailureOf(err); failure != tunnel.FailRefused {
		t.Errorf("%v is %v", err, failure)
	}
}
