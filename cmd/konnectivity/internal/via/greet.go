package via

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// WrongPort is the error for a port that speaks another protocol than expected.
type WrongPort struct {
	at    string
	found Answer
	want  Protocol
}

// Error names the program at the port, and says what to do.
func (w *WrongPort) Error() string {
	return fmt.Sprintf("%s answers at %s; %s", w.found.Who, w.at, w.advice())
}

// advice says how to use the port, or which one to look for.
func (w *WrongPort) advice() string {
	switch {
	case w.found.Kind == SpeaksTLS:
		return "if that is the konnectivity server's port for clients, use link://" + w.at + " or https://" + w.at
	case w.found.Kind == SpeaksHTTP && w.want == SpeaksSOCKS5:
		return "if that is an HTTP proxy, use http://" + w.at
	case w.found.Kind == SpeaksSOCKS5:
		return "use socks5://" + w.at
	default:
		return "look for the port of a sidecar"
	}
}

func (w *WrongPort) dialError(address string) error {
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: w.Error(), Err: w}
}

// greetingTime is ample for a proxy to answer a greeting. A port without an answer by
// then is identified while the greeting still waits.
const greetingTime = 500 * time.Millisecond

// handshakeAt runs a handshake with a proxy over c. If the port speaks another protocol, it
// soon returns a *WrongPort in a *tunnel.DialError, although many programs wait in silence
// for the rest of a request that they do not understand.
func handshakeAt(ctx context.Context, c net.Conn, front, address string, want Protocol, handshake func(net.Conn) error) error {
	reader := &firstByteConn{Conn: c, first: make(chan struct{})}
	over := make(chan struct{})
	var found Answer
	var asking sync.WaitGroup
	if want == SpeaksSOCKS5 { // an HTTP proxy answers only after its own dial
		asking.Go(func() {
			select {
			case <-over:
			case <-reader.first:
			case <-time.After(greetingTime):
				if found = Identify(ctx, front); found.Not(want) {
					_ = c.Close()
				}
			}
		})
	}
	err := handshake(reader)
	close(over)
	asking.Wait()
	status, refused := errors.AsType[*connect.StatusError](err)
	if err == nil || ctx.Err() != nil || refused && !noProxy[status.Status] {
		return err
	}
	if found.Kind == NoAnswer && !reader.socks5() {
		found = Identify(ctx, front)
	}
	if refused && found.Kind == SpeaksHTTP {
		found = Answer{Kind: SpeaksOther, Who: fmt.Sprintf("%s that is no proxy (it answers %d)", found.Who, status.Status)}
	}
	if found.Not(want) {
		return (&WrongPort{front, found, want}).dialError(address)
	}
	return err
}

// unanswered is the error of a dial where the proxy at front hung up, or said nothing in time. It
// may have waited for the destination.
func unanswered(front string, dial *tunnel.DialError) *tunnel.DialError {
	if dial.Reason != "" || errors.Is(dial, connect.ErrMalformed) { // it says what answers there
		return dial
	}
	return &tunnel.DialError{Failure: dial.Failure, Address: dial.Address, Reason: "no answer by way of the proxy at " + front, Err: dial.Err}
}

// noProxy has the answers of web servers to CONNECT.
var noProxy = map[int]bool{400: true, 404: true, 405: true, 501: true}

// firstByteConn records the first byte that is read. One goroutine may read.
type firstByteConn struct {
	net.Conn
	first chan struct{}
	byte0 byte
	any   bool
}

func (h *firstByteConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 && !h.any {
		h.any, h.byte0 = true, p[0]
		close(h.first)
	}
	return n, err
}

// socks5 reports whether the answer began as one in SOCKS5.
func (h *firstByteConn) socks5() bool { return h.any && h.byte0 == 5 }
