package httpsproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// FuzzConnectTarget checks that nothing reaches a dialer but host:port, and
// that what does is what was asked for.
func FuzzConnectTarget(f *testing.F) {
	for _, request := range badTargets {
		f.Add(strings.SplitN(strings.TrimPrefix(request, "CONNECT "), " ", 2)[0])
	}
	for _, good := range []string{"example.test:443", "[::1]:80", "10.0.0.1:65535", "a_b.test.:1"} {
		f.Add(good)
	}
	local, remote := net.Pipe()
	defer local.Close()
	defer remote.Close()
	c := &client{conn: tunnel.Wrap(local)}
	f.Fuzz(func(t *testing.T, authority string) {
		address, refused := connectTarget(c, &http.Request{RequestURI: authority})
		testutil.Requires(t, (address == "") != (refused == nil),
			"%q: address %q, refusal %v", authority, address, refused)
		if refused != nil {
			testutil.Requires(t, refused.status >= 400 && refused.text != "" && !strings.ContainsAny(refused.text, "\r\n"),
				"%q: refusal %+v", authority, refused)
			return
		}
		host, port, err := tunnel.SplitAddress(address)
		testutil.Requires(t, err == nil && !strings.ContainsAny(address, " \r\n\t\x00/@"),
			"%q: address %q, %v", authority, address, err)
		want, _, _ := tunnel.SplitAddress(authority)
		testutil.Requires(t, want == host && port != 0, "%q: address %q", authority, address)
	})
}

// FuzzWire sends anything to a whole proxy. It must answer in HTTP or close, be
// quick about it, leak nothing, and dial nothing malformed.
func FuzzWire(f *testing.F) {
	for _, request := range badTargets {
		f.Add([]byte(request))
	}
	for _, good := range []string{
		"GET http://example.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST http://example.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nT: x\r\n\r\n",
		"PUT http://example.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi",
		"CONNECT example.test:443 HTTP/1.1\r\n\r\nearly",
		"GET http://example.test/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes",
		"OPTIONS http://example.test HTTP/1.0\r\nMax-Forwards: 0\r\nVia: 1.1 x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(good))
	}
	echoed := testutil.Echo(f)
	dial := func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if _, _, err := tunnel.SplitAddress(f.Address); err != nil {
			panic(fmt.Sprintf("dialed %q", f.Address))
		}
		return dialTCP(ctx, f.To(echoed))
	}
	p := startProxy(f, func(o *Options) {
		o.responseTimeout = time.Second
		o.handshakeTimeout = time.Second
		o.Forwarder.Dialer = tunnel.DialerFunc(dial)
		o.Forward = tunnel.DialerFunc(dial)
	})
	f.Fuzz(func(t *testing.T, request []byte) {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Skip(err) // the fuzzer outruns the kernel
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(maxWait))
		go func() {
			_, _ = c.Write(request)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		r := bufio.NewReader(c)
		first, err := r.Peek(5)
		testutil.Holds(t, err != nil || string(first) == "HTTP/", "answered %q", first)
		testutil.Requires(t, !os.IsTimeout(testutil.Err(io.Copy(io.Discard, r))), "the connection was left open")
	})
}
