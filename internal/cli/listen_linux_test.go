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
	l := testutil.Opened(cli.ListenTCP("127.0.0.1:0"))(t)
	testutil.Opened(net.Dial("tcp", l.Addr().String()))(t)
	conn := testutil.Opened(l.Accept())(t)
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
	forbidding(t, func() {
		forbid(t, unix.SYS_SOCKET, unix.AF_INET6)
		for _, all := range []string{":0", "[::]:0"} {
			_ = testutil.Must(cli.ListenTCP(all))(t).Close()
		}
	})
}

// A listener whose address the kernel does not tell is refused, and the reason said.
func TestListenerWithoutAddress(t *testing.T) {
	forbidding(t, func() {
		forbid(t, unix.SYS_GETSOCKNAME)
		_, err := cli.ListenTCP("127.0.0.1:0")
		testutil.ErrorSays(t, err, "cannot listen on 127.0.0.1:0: the kernel does not tell its own address: a sandbox may forbid getsockname", "the listener")
	})
}

// forbidding calls do in a process of its own, since Go asks once what the kernel has, and
// in a thread of its own, which a filter is for.
func forbidding(t *testing.T, do func()) {
	t.Helper()
	const inside = "KONNECTIVITY_TEST_FORBIDDING"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(testutil.Must(os.Executable())(t), "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		testutil.Holds(t, err == nil, "%v: %s", err, out)
		return
	}
	runtime.LockOSThread()
	do()
}

// forbid has a call, with this first argument if one is given, fail by EPERM in this thread.
func forbid(t *testing.T, call uint32, argument ...uint32) {
	t.Helper()
	const load, equal, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	rules := []unix.SockFilter{
		{Code: load, K: 0}, // the number of the call
		{Code: equal, K: call, Jf: uint8(1 + 2*len(argument))},
	}
	for _, a := range argument {
		rules = append(rules, unix.SockFilter{Code: load, K: 16}, unix.SockFilter{Code: equal, K: a, Jf: 1}) // of little endian
	}
	rules = append(rules,
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
	testutil.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	program := unix.SockFprog{Len: uint16(len(rules)), Filter: &rules[0]}
	testutil.NoError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}
