package httpsproxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// upgradeTarget answers an upgrade together with its first words, then serves
// the connection with handle.
func upgradeTarget(t *testing.T, first string, handle func(*wire)) (addr string) {
	return testutil.Serve(t, func(c *net.TCPConn) {
		w := newWire(t, c)
		w.head()
		w.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nKeep-Alive: x\r\n\r\n%s", first)
		handle(w)
	})
}

const upgradeRequest = "GET http://%s/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

func (w *wire) upgrade(addr, ahead string) {
	w.t.Helper()
	w.send(upgradeRequest+"%s", addr, ahead)
	status, header := w.head()
	all := strings.Join(header, "\n")
	if status != "HTTP/1.1 101 Switching Protocols" || !strings.Contains(all, "Connection: Upgrade") ||
		!strings.Contains(all, "Upgrade: websocket") || !strings.Contains(all, "Sec-Websocket-Accept: x") || strings.Contains(all, "Keep-Alive") {
		w.t.Fatalf("%q %q", status, header)
	}
}

// Bytes that come together with the request or the response are not lost.
func TestUpgradeRelaysRawBytes(t *testing.T) {
	target := upgradeTarget(t, "server first,", func(w *wire) {
		_, _ = io.Copy(w, w.r)
		_ = w.CloseWrite()
	})
	w := dialProxy(t, nil)
	w.upgrade(target, "client ahead,")
	w.expect("server first,client ahead,")
	w.send("then \x00\xff")
	w.expect("then \x00\xff")
	time.Sleep(20 * time.Millisecond) // the request's context has long ended
	w.send("on")
	w.expect("on")
	_ = w.CloseWrite()
	w.expectEnd()
}

func TestUpgradeRefused(t *testing.T) {
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		testutil.Equal(t, r.Header.Get("Upgrade"), "websocket", "Upgrade")
		http.Error(w, "no sockets", http.StatusForbidden)
	})
	w := dialProxy(t, nil)
	for range 2 { // the connection goes on
		w.send(upgradeRequest, origin)
		testutil.Equal(t, w.answered(403, "status"), "no sockets\n", "content")
	}
}

// flood writes until nothing more is taken, then resets.
func flood(w *wire) {
	for err := error(nil); err == nil; {
		_ = w.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		_, err = w.Write(make([]byte, 64<<10))
	}
	_ = w.SetLinger(0)
	_ = w.Close()
}

// Nobody reads from a side while the other takes nothing. Its reset must be
// noticed all the same.
func TestResetsBehindAStallAreNoticed(t *testing.T) {
	t.Parallel() // it waits
	for side, stall := range map[string]func(t *testing.T, p *proxy, silent chan struct{}){
		"the client's": func(t *testing.T, p *proxy, silent chan struct{}) {
			w := dialWire(t, p.addr)
			w.upgrade(upgradeTarget(t, "", func(*wire) { <-silent }), "")
			flood(w)
		},
		"an upload's": func(t *testing.T, p *proxy, silent chan struct{}) {
			origin := testutil.Serve(t, func(*net.TCPConn) { <-silent })
			w := dialWire(t, p.addr)
			w.send("PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", origin, int64(1)<<40)
			flood(w)
		},
		"the target's": func(t *testing.T, p *proxy, silent chan struct{}) {
			w := dialWire(t, p.addr)
			w.upgrade(upgradeTarget(t, "", flood), "")
		},
	} {
		t.Run(side, func(t *testing.T) {
			t.Parallel() // it waits
			seen := newDiary()
			p := startProxy(t, func(o *Options) { o.Forwarder.Observers = []tunnel.Observer{seen} })
			silent := make(chan struct{})
			defer close(silent)
			stall(t, p, silent)
			code := tunnel.CodeOf(testutil.Receive(t, "the end of the connection", seen.ends))
			// On a busy machine net/http may still read, and says only that the client has left.
			testutil.Holds(t, code == tunnel.CodePeerReset || side == "an upload's" && code == tunnel.CodeCancelled, "how it ended: %v", code)
		})
	}
}
