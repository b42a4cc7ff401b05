package testutil_test

import (
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// local are addresses at which tests listen.
var local = []string{"127.0.0.1", "127.0.0.2", "::1"}

func refuses(t *testing.T, address string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, testutil.Patience)
	if err == nil {
		c.Close()
	}
	testutil.Holds(t, errors.Is(err, syscall.ECONNREFUSED) || noIPv6(err), "%s does not refuse: %v", address, err)
}

func noIPv6(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.ENETUNREACH)
}

func TestRefusingIsNobodysElse(t *testing.T) {
	address := testutil.Refusing(t)
	_, port, _ := net.SplitHostPort(address)
	for _, ip := range local {
		at := net.JoinHostPort(ip, port)
		refuses(t, at)
		if l, err := net.Listen("tcp", at); err == nil {
			l.Close()
			t.Errorf("another listens on %s", at)
		} else if !errors.Is(err, syscall.EADDRINUSE) && !noIPv6(err) {
			t.Error(err)
		}
		refuses(t, at)
	}
}

// A reserved port is there for who knows it, once and again, and refuses
// between.
func TestReservedIsListenedOnAgain(t *testing.T) {
	port := strconv.Itoa(testutil.Reserved(t))
	for _, ip := range local {
		at := net.JoinHostPort(ip, port)
		for range 3 {
			refuses(t, at)
			l, err := net.Listen("tcp", at)
			if noIPv6(err) {
				break
			}
			testutil.NoError(t, err)
			testutil.Fails(t, testutil.Err(net.Listen("tcp", at)), "two listen on one port")
			testutil.NoError(t, testutil.Must(net.Dial("tcp", at))(t).Close())
			l.Close()
		}
	}
}

// TestHeldPortIsNotPicked asks for any port, by listening and by connecting, so often
// that each held port would be picked several times.
func TestHeldPortIsNotPicked(t *testing.T) {
	held := map[string]bool{}
	for range 150 {
		for _, address := range []string{testutil.ReservedAddress(t), testutil.Refusing(t)} {
			testutil.Requires(t, !held[address], "%s was given twice", address)
			held[address] = true
		}
	}
	for range 3000 {
		near, far, err := testutil.Connected()
		testutil.NoError(t, err)
		_, _ = near.Close(), far.Close()
		for _, given := range []net.Addr{near.LocalAddr(), near.RemoteAddr()} {
			testutil.Requires(t, !held[given.String()], "%s is held, and was given to another", given)
		}
	}
}

func TestPortsAreReleasedWithTheTest(t *testing.T) {
	testutil.Listen(t).Close() // opens what the runtime keeps
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(all)
	}
	before := open()
	t.Run("held", func(t *testing.T) {
		testutil.Refusing(t)
		testutil.Reserved(t)
		testutil.Equal(t, open(), before+2, "open files with two ports held")
	})
	testutil.Equal(t, open(), before, "open files afterwards")
}
