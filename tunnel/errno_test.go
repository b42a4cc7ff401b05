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
		testutil.Equal(t, tunnel.IsErrno(c.err, c.any...), c.want, "%v is one of %v", c.err, c.any)
	}
}

// What a system itself says of a port that refuses has the name it has
// everywhere.
func TestRefusedDialIsFailRefused(t *testing.T) {
	c, err := net.Dial("tcp", testutil.Refusing(t))
	if err == nil {
		c.Close()
	}
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailRefused, "%v", err)
}
