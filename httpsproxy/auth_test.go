package httpsproxy

import (
	"bufio"
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

type users map[string]string

func (u users) Check(_ context.Context, _ net.Addr, user, password string) bool {
	return user != "" && u[user] == password
}

// Where credentials are asked for, no request passes without, and none passes
// them on.
func TestCredentials(t *testing.T) {
	origin, heads := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := startProxy(t, func(o *Options) { o.Credentials = users{"anna": "se:cret"} })
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for given, ok := range map[string]bool{
		"":                                  false,
		basic("anna:se:cret"):               true,
		"basic" + basic("anna:se:cret")[5:]: true,
		basic("anna:"):                      false,
		basic("anna"):                       false,
		basic(":"):                          false,
		basic("bert:se:cret"):               false,
		"Bearer anna:se:cret":               false,
		"Basic !":                           false,
		basic("anna:se:cret") + "\r\nProxy-Authorization: " + basic("a:b"): false,
	} {
		for _, request := range []string{"GET http://" + origin + "/ HTTP/1.1\r\nHost: x\r\n", "CONNECT " + origin + " HTTP/1.1\r\nHost: x\r\n", "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: " + basic("anna:se:cret") + "\r\n"} {
			w := dialWire(t, p.addr)
			auth := ""
			if given != "" {
				auth = "Proxy-Authorization: " + given + "\r\n"
			}
			w.send("%s", request+auth+"\r\n")
			status, header := w.head()
			asked := strings.Contains(status, " 407 ")
			testutil.Equal(t, asked, !ok, "%q %q is asked: %s", request, given, status)
			told := strings.Contains(strings.Join(header, "\n"), `Proxy-Authenticate: Basic realm="konnectivity"`)
			testutil.Equal(t, told, asked, "it is told how to log in: %q", header)
			_ = w.Close()
		}
	}
	for len(heads) > 0 {
		head := strings.Join(<-heads, "\n")
		testutil.Equal(t, strings.Contains(head, "Proxy-Authorization"), false, "passed on: %s", head)
	}
}

// blockedCheck tells of each check, which lasts until its context ends.
type blockedCheck chan struct{}

func (b blockedCheck) Check(ctx context.Context, _ net.Addr, _, _ string) bool {
	b <- struct{}{}
	<-ctx.Done()
	return false
}

// A drain does not wait for checks, whether or not the request has content.
func TestDrainEndsChecks(t *testing.T) {
	checks := make(blockedCheck)
	p := startProxy(t, func(o *Options) { o.Credentials, o.Drain = checks, time.Hour })
	for _, request := range []string{"GET http://x/ HTTP/1.1\r\n", "PUT http://x/ HTTP/1.1\r\nContent-Length: 9\r\n", "CONNECT x:1 HTTP/1.1\r\n"} {
		w := dialWire(t, p.addr)
		w.send("%sHost: x\r\nProxy-Authorization: Basic YTpi\r\n\r\n", request)
		testutil.Receive(t, "the check", checks)
	}
	p.end(t)
}

// A client without credentials that leaves its content out is not waited for.
func TestChallengedClientIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := byPipe(func(net.Conn, *bufio.Reader) {})
		o := Options{Options: front.Options{Forwarder: &tunnel.Forwarder{Dialer: dial}}, Forward: dial, Transport: new(http.Transport), Credentials: users{}}
		s := testutil.Must(New(o))(t)
		client, conn := net.Pipe()
		done := wait.Go(func() { s.serveConn(t.Context(), tunnel.Wrap(conn)) })
		_ = client.SetDeadline(time.Now().Add(time.Hour))
		_, _ = io.WriteString(client, "PUT http://x:1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
		resp := testutil.Must(http.ReadResponse(bufio.NewReader(client), nil))(t)
		testutil.Equal(t, resp.StatusCode, http.StatusProxyAuthRequired, "status")
		began := time.Now()
		_, _ = io.ReadAll(client)
		<-done
		testutil.AtMost(t, time.Since(began), 2*defaultHandshakeTimeout, "time that it was waited for")
	})
}
