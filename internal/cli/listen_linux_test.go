package cli_test

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// Accepted connections hold as few unsent bytes as their listener is set to.
func TestAcceptedConnectionsHoldFewUnsentBytes(t *testing.T) {
	l := testutil.Must(cli.ListenTCP("127.0.0.1:0"))(t)
	defer l.Close()
	client := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer client.Close()
	conn := testutil.Must(l.Accept())(t)
	defer conn.Close()
	raw := testutil.Must(conn.(*net.TCPConn).SyscallConn())(t)
	var got int
	var err error
	testutil.NoError(t, raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) }))
	testutil.Holds(t, err == nil && got == 256<<10, "TCP_NOTSENT_LOWAT is %d, %v", got, err)
}

// All addresses are those of IPv4, too, however they are written.
func TestAllAddressesAreThoseOfIPv4Too(t *testing.T) {
	for _, all := range []string{":0", "[::]:0", "[0::0]:0"} {
		l := testutil.Must(cli.ListenTCP(all))(t)
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		c := testutil.Must(net.Dial("tcp", "127.0.0.1:"+port))(t)
		_ = c.Close()
	}
}

// Where IPv6 is forbidden, as by a sandbox, all addresses are those of IPv4.
func TestListenersWhereIPv6IsForbidden(t *testing.T) {
	const inside = "KONNECTIVITY_TEST_WITHOUT_IPV6"
	if os.Getenv(inside) == "" { // in a process of its own: Go asks once what the kernel has
		cmd := exec.Command(testutil.Must(os.Executable())(t), "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		testutil.Holds(t, err == nil, "%v: %s", err, out)
		return
	}
	runtime.LockOSThread() // the filter is this thread's
	forbidIPv6(t)
	for _, all := range []string{":0", "[::]:0"} {
		_ = testutil.Must(cli.ListenTCP(all))(t).Close()
	}
}

// forbidIPv6 has socket fail by EPERM for IPv6 in this thread.
func forbidIPv6(t *testing.T) {
	t.Helper()
	const load, equal, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	rules := []unix.SockFilter{
		{Code: load, K: 0}, // the number of the call
		{Code: equal, K: unix.SYS_SOCKET, Jf: 3},
		{Code: load, K: 16}, // its first argument, of little endian
		{Code: equal, K: unix.AF_INET6, Jf: 1},
		{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: end, K: unix.SECCOMP_RET_ALLOW},
	}
	testutil.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	program := unix.SockFprog{Len: uint16(len(rules)), Filter: &rules[0]}
	testutil.NoError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}
