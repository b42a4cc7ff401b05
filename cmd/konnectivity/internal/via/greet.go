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

// WrongPort says that a port speaks something else than it was taken for.
type WrongPort struct {
	at    string
	found Answer
	want  Protocol
}

// Error says who answers, and what to do.
func (w *WrongPort) Error() string {
	return fmt.Sprintf("%s answers at %s; %s", w.found.Who, w.at, w.advice())
}

// advice is what to use the port as, or which one to look for.
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

// greetTime is when a proxy that works has long begun to answer a greeting. One
// that has not is asked what it speaks, while the greeting still waits.
const greetTime = 500 * time.Millisecond

// greeted runs a handshake with a proxy. Where the proxy's port speaks another
// protocol the error is a *WrongPort in a *tunnel.DialError, and comes soon,
// though many programs wait in silence for more of what they do not understand.
func greeted(ctx context.Context, c net.Conn, front, address string, want Protocol, handshake func(net.Conn) error) error {
	heard := &hearing{Conn: c, first: make(chan struct{})}
	over := make(chan struct{})
	var found Answer
	var asking sync.WaitGroup
	if want == SpeaksSOCKS5 { // of HTTP the first word comes after the dial
		asking.Go(func() {
			select {
			case <-over:
			case <-heard.first:
			case <-time.After(greetTime):
				if found = Identify(ctx, front); found.Not(want) {
					_ = c.Close()
				}
			}
		})
	}
	err := handshake(heard)
	close(over)
	asking.Wait()
	var status *connect.StatusError
	refused := errors.As(err, &status)
	if err == nil || ctx.Err() != nil || refused && !noProxy[status.Status] {
		return err
	}
	if found.Kind == NoAnswer && !heard.socks5() {
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

// noProxy are the answers of web servers to CONNECT.
var noProxy = map[int]bool{400: true, 404: true, 405: true, 501: true}

// hearing notes the first byte that is read; it is read from one goroutine.
type hearing struct {
	net.Conn
	first chan struct{}
	byte0 byte
	any   bool
}

func (h *hearing) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if n > 0 && !h.any {
		h.any, h.byte0 = true, p[0]
		close(h.first)
	}
	return n, err
}

// SOCKS5 says that the answer began as one in SOCKS5 does.
func (h *hearing) socks5() bool { return h.any && h.byte0 == 5 }
