package testutil

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Pair is the two ends of a TCP connection over loopback. What is left open is
// closed when the test ends.
func Pair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	near, far, err := Connected()
	NoError(t, err)
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// Connected is Pair for code that knows of no test, and closes both ends itself.
func Connected() (near, far *net.TCPConn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	b, err := l.Accept()
	if err != nil {
		_ = a.Close()
		return nil, nil, err
	}
	return a.(*net.TCPConn), b.(*net.TCPConn), nil
}

// Listen listens on a free port of 127.0.0.1 until the test ends.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l := Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Echo serves connections that get back what they send, as it comes, and then the
// FIN. It returns the address.
func Echo(t testing.TB) (address string) {
	t.Helper()
	return Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
}

// Serve calls serve for every connection to a port of 127.0.0.1, each on a goroutine of
// its own, and closes the connection afterwards. When the test ends, it closes all
// connections, and waits for every serve.
func Serve(t testing.TB, serve func(*net.TCPConn)) (address string) {
	t.Helper()
	return ServeAt(t, "127.0.0.1:0", serve)
}

// ServeAt is Serve at a given address.
func ServeAt(t testing.TB, address string, serve func(*net.TCPConn)) string {
	t.Helper()
	l := Must(net.Listen("tcp", address))(t)
	ServeOn(t, l, serve)
	return l.Addr().String()
}

// ServeOn is Serve by a listener for TCP, which it closes.
func ServeOn(t testing.TB, l net.Listener, serve func(*net.TCPConn)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { cancel(); _ = l.Close(); wg.Wait() })
}
