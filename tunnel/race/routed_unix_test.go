//go:build !windows

package race

import (
	"net/netip"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
)

// An address without a route has none. One that cannot be asked about, since this process has run
// out of descriptors, is not taken for such.
func TestRouted(t *testing.T) {
	none := netip.MustParseAddr("fe80::1") // of no link
	testutil.Equal(t, Routed(netip.MustParseAddr("127.0.0.1")), true, "a route to loopback")
	testutil.Equal(t, Routed(none), false, "a route to nowhere")
	var was syscall.Rlimit
	testutil.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	few := was
	few.Cur = 3
	testutil.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	exhausted := Routed(none)
	testutil.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was))
	testutil.Equal(t, exhausted, true, "a route that cannot be asked about")
}
