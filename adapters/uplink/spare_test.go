package uplink

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// unused is a connection that nobody has used, and the server's end of it.
func unused(t *testing.T) (h handshaken, server net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return handshaken{Conn: tls.Client(near, &tls.Config{ServerName: "server"})}, far
}

// closed says whether the other end has closed the connection.
func closed(server net.Conn) bool {
	_ = server.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := server.Read(make([]byte, 1))
	return err == io.EOF
}

// A spare has one connection, for one request, for a time.
func TestSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s spare
		if _, ok := s.take(); ok {
			t.Error("an empty one has a connection")
		}
		first, firstServer := unused(t)
		second, secondServer := unused(t)
		s.keep(first)
		s.keep(second)
		if closed(firstServer) || !closed(secondServer) {
			t.Error("it is to keep the first, and no second")
		}
		if h, ok := s.take(); !ok || h.Conn != first.Conn || !h.spare {
			t.Errorf("%v: %+v", ok, h)
		}
		if _, ok := s.take(); ok {
			t.Error("one connection serves two requests")
		}
		time.Sleep(2 * spareTime)
		if closed(firstServer) {
			t.Error("it has closed a connection that was taken")
		}
	})
}

func TestSpareEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s spare
		h, server := unused(t)
		s.keep(h)
		time.Sleep(spareTime)
		synctest.Wait()
		if _, ok := s.take(); ok || !closed(server) {
			t.Error("it was kept for longer than its time")
		}
		h, server = unused(t)
		s.keep(h)
		s.close()
		if !closed(server) {
			t.Error("close leaves it open")
		}
		h, server = unused(t)
		s.keep(h)
		if _, ok := s.take(); ok || !closed(server) {
			t.Error("one that came too late was kept")
		}
	})
}
