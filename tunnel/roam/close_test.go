package roam_test

import (
	"io"
	"net"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// A process that goes in order takes nothing with it that its applications had
// finished.
func TestCloseLetsTheLastBytesOut(t *testing.T) {
	const size = 8 << 20
	w := newWorld(t, 1, 30*time.Second)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.dest = l.Addr().String()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.(*net.TCPConn).CloseWrite()
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	c, err := w.opener.Dialer(w).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(n, err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Hour)) // so that Write does not wait for the link
	if n, err := c.Write(make([]byte, size)); err != nil {
		t.Fatal(n, err)
	}
	_ = c.Close()
	w.opener.Close()
	if n := <-got; n != size {
		t.Errorf("%d of %d bytes arrived", n, size)
	}
}

// What was written before Close arrives, also where the link is cut just then
// and the other end has not ended its direction.
func TestCloseDeliversOverAnotherLink(t *testing.T) {
	w := newWorld(t, 1, time.Minute)
	for range 20 {
		c, far := w.dialed(t, t.Context())
		const size = 64 << 10 // which a carrier takes at once
		if n, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(n, err)
		}
		_ = c.Close()
		w.servers[0].cut(true)
		w.servers[0].linkNear()
		_ = far.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := io.Copy(io.Discard, far); n != size || err != nil {
			t.Fatalf("%d of %d bytes arrived: %v", n, size, err)
		}
		_ = far.Close()
	}
}
