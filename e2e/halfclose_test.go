package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// Whoever sends and then ends its direction still hears the answer: all bytes
// arrived before the end, and the end did not take the other direction along.
func TestHalfClose(t *testing.T) {
	w := newWhole(t)
	routes := w.routes(t)
	tries, size := scaled(40, 1000), scaled[int64](4<<20, 100<<20)
	const seeds = 4
	var want [seeds]string
	for i := range want {
		want[i] = sum(int64(i), size)
	}
	target := listen(t, func(c *net.TCPConn) {
		if h, err := hashOf(c); err == nil {
			fmt.Fprint(c, h)
		}
	})
	jobs := make(chan int)
	var wg sync.WaitGroup
	var right [4]atomic.Int64
	for range 4 {
		wg.Go(func() {
			for i := range jobs {
				r := routes[i%len(routes)]
				got, err := halfClose(t, r, target, newPayload(int64(i%seeds), size))
				if err != nil || got != want[i%seeds] {
					t.Errorf("%s: try %d: the target's hash is %q, %v", r.name, i, got, err)
					continue
				}
				right[i%len(routes)].Add(1)
			}
		})
	}
	start := time.Now()
	for i := range tries {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	for i, r := range routes {
		t.Logf("%s: %d right of %d MiB each", r.name, right[i].Load(), size>>20)
	}
	t.Logf("%d in %v", tries, time.Since(start).Round(time.Millisecond))
}

// Our own agent and sidecars keep half-close also where the link is off.
func TestHalfCloseWithoutLinks(t *testing.T) {
	w := &whole{Suite: newSuite(t)}
	w.server = must(w.StartServer("--link=off"))(t)
	w.agent = must(w.StartAgent(w.server, "--link=off"))(t)
	w.socks = must(w.StartSOCKS5(w.server, "--link=off"))(t)
	w.https = must(w.StartHTTPS(w.server, "--link=off"))(t)
	const size = 1 << 20
	want := sum(1, size)
	target := listen(t, func(c *net.TCPConn) {
		if h, err := hashOf(c); err == nil {
			fmt.Fprint(c, h)
		}
	})
	for _, r := range w.routes(t) {
		for range 5 {
			if got, err := halfClose(t, r, target, newPayload(1, size)); err != nil || got != want {
				t.Errorf("%s: the target's hash is %q, %v", r.name, got, err)
			}
		}
	}
}

func halfClose(t *testing.T, d tunnel.Dialer, target string, body io.Reader) (answer string, err error) {
	c, err := d.Dial(within(t, patience), tunnel.NewFlow("tcp", target))
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(scaled(time.Minute, 5*time.Minute)))
	if _, err := io.Copy(c, body); err != nil {
		return "", err
	}
	if err := c.CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(c)
	return string(got), err
}

// The other way round: the target ends first, and still hears all.
func TestHalfCloseByTheTarget(t *testing.T) {
	w := newWhole(t)
	const size = 1 << 20
	want := sum(7, size)
	heard := make(chan string, 1)
	target := listen(t, func(c *net.TCPConn) {
		fmt.Fprint(c, "bye")
		_ = c.CloseWrite()
		h, err := hashOf(c)
		heard <- fmt.Sprint(h, err)
	})
	for _, r := range w.routes(t) {
		c := must(r.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
			t.Errorf("%s: got %q, %v from the target", r.name, got, err)
		}
		if _, err := io.Copy(c, newPayload(7, size)); err != nil {
			t.Errorf("%s: sending after the target's end: %v", r.name, err)
		}
		_ = c.CloseWrite()
		select {
		case got := <-heard:
			if got != want+"<nil>" {
				t.Errorf("%s: the target heard %s, want %s", r.name, got, want)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the target has not heard all", r.name)
		}
		c.Close()
	}
}

// A reset is a reset at the other end, never an orderly end. A unix socket
// has no reset, so it is not among the routes.
func TestResetsCrossAllHops(t *testing.T) {
	w := newWhole(t)
	for _, r := range w.routes(t)[:3] {
		t.Run(r.name, func(t *testing.T) {
			t.Run("by the target", func(t *testing.T) { resetByTarget(t, r) })
			t.Run("by the client", func(t *testing.T) { resetByClient(t, r) })
		})
	}
}

func resetByTarget(t *testing.T, d tunnel.Dialer) {
	target := listen(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	c := must(d.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client reads %v, want a reset", err)
	}
}

func resetByClient(t *testing.T, d tunnel.Dialer) {
	heard := make(chan error, 1)
	target := listen(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		heard <- err
	})
	c := must(d.Dial(within(t, patience), tunnel.NewFlow("tcp", target)))(t)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = c.Reset(nil)
	select {
	case err := <-heard:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the target reads %v, want a reset", err)
		}
	case <-time.After(patience):
		t.Error("the target never heard of the client's reset")
	}
}
