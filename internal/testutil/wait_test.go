package testutil_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// recorder is a test whose failure does not fail the test that runs it.
type recorder struct {
	testing.TB
	fatal bool
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(string, ...any) {
	r.fatal = true
	panic(r)
}

// fails reports whether f fails its test.
func fails(t *testing.T, f func(testing.TB)) bool {
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		f(r)
	}()
	return r.fatal
}

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		late := func() bool { return time.Since(start) >= time.Second }
		if fails(t, func(t testing.TB) { testutil.Eventually(t, "late", late) }) || time.Since(start) > 2*time.Second {
			t.Errorf("a condition that holds after a second: %v", time.Since(start))
		}
		start = time.Now()
		if !fails(t, func(t testing.TB) { testutil.Within(t, time.Minute, "never", func() bool { return false }) }) || time.Since(start) < time.Minute {
			t.Errorf("one that never holds: failed after %v", time.Since(start))
		}
		c := make(chan int, 1)
		c <- 7
		if got := testutil.Receive(t, "seven", c); got != 7 {
			t.Errorf("received %d", got)
		}
		if !fails(t, func(t testing.TB) { testutil.Receive(t, "nothing", c) }) {
			t.Error("received nothing, without failing")
		}
		close(c)
		if !fails(t, func(t testing.TB) { testutil.Receive(t, "nothing", c) }) {
			t.Error("received from a closed channel, without failing")
		}
	})
}

func TestEchoReturnsTheFIN(t *testing.T) {
	c, err := net.Dial("tcp", testutil.Echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); string(got) != "ping" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
