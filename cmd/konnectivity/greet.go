package main

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

// wrongPort says that a port speaks something else than it was taken for.
type wrongPort struct {
	at    string
	found speech
	want  protocol
}

func (w *wrongPort) Error() string {
	return fmt.Sprintf("%s answers at %s; %s", w.found.who, w.at, w.advice())
}

// advice is what to use the port as, or which one to look for.
func (w *wrongPort) advice() string {
	switch {
	case w.found.kind == speaksTLS:
		return "if that is the konnectivity server's port for clients, use link://" + w.at + " or https://" + w.at
	case w.found.kind == speaksHTTP && w.want == speaksSOCKS5:
		return "if that is an HTTP proxy, use http://" + w.at
	case w.found.kind == speaksSOCKS5:
		return "use socks5://" + w.at
	default:
		return "look for the port of a sidecar"
	}
}

func (w *wrongPort) dialError(address string) error {
	return &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: w.Error(), Err: w}
}

// greetTime is when a proxy on the way has long begun to answer a greeting; what
// has not by then is asked what it speaks, while the greeting still waits.
const greetTime = 500 * time.Millisecond

// greeted runs a handshake with a proxy. Where the proxy's port speaks another
// protocol the error is a *wrongPort in a *tunnel.DialError, and comes soon,
// though many programs wait in silence for more of what they do not understand.
func greeted(ctx context.Context, c net.Conn, front, address string, want protocol, handshake func(net.Conn) error) error {
	heard := &hearing{Conn: c, first: make(chan struct{})}
	over := make(chan struct{})
	var found speech
	var asking sync.WaitGroup
	if want == speaksSOCKS5 { // of HTTP the first word comes after the dial
		asking.Go(func() {
			select {
			case <-over:
			case <-heard.first:
			case <-time.After(greetTime):
				if found = whatSpeaks(ctx, front); found.not(want) {
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
	if found.kind == speaksNothing && !heard.socks5() {
		found = whatSpeaks(ctx, front)
	}
	if refused && found.kind == speaksHTTP {
		found = speech{speaksOther, fmt.Sprintf("%s that is no proxy (it answers %d)", found.who, status.Status)}
	}
	if found.not(want) {
		return (&wrongPort{front, found, want}).dialError(address)
	}
	return err
}

// noProxy are the answers of web servers to CONNECT.
var noProxy = map[int]bool{400: true, 404: true, 405: true, 501: true}

// not says that it is known to speak something else.
func (s speech) not(want protocol) bool {
	return s.kind != want && s.kind != speaksNothing && s.kind != speaksUnknown
}

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

// socks5 says that the answer began as one in SOCKS5 does.
func (h *hearing) socks5() bool { return h.any && h.byte0 == 5 }
