package httpsproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// newServer is a Server whose plain requests go the same way as CONNECT.
func newServer(t *testing.T, o front.Options) *Server {
	t.Helper()
	return testutil.Must(New(Options{Options: o, Forward: o.Forwarder.Dialer, Transport: new(http.Transport)}))(t)
}

// byPipe reaches a destination that handle serves behind the header of its first request.
func byPipe(handle func(far net.Conn, r *bufio.Reader)) tunnel.DialerFunc {
	return func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			r := bufio.NewReader(far)
			if _, err := http.ReadRequest(r); err == nil {
				handle(far, r)
			}
		}()
		return tunnel.Wrap(near), nil
	}
}

// piped is the one client of a proxy without sockets, whose destination is
// served by handle: for tests in fake time.
func piped(t *testing.T, connect *tunnel.Forwarder, handle func(conn net.Conn, r *bufio.Reader)) (client net.Conn) {
	t.Helper()
	connect.Dialer = byPipe(handle)
	s := newServer(t, front.Options{Forwarder: connect})
	client, conn := net.Pipe()
	done := wait.Go(func() { s.serveConn(context.Background(), tunnel.Wrap(conn)) })
	t.Cleanup(func() {
		_ = client.Close()
		<-done
		s.CloseIdle()
	})
	return client
}

// An exchange in which nothing moves ends; one that moves slowly goes on.
func TestIdleBoundsPlainExchanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		client := piped(t, &tunnel.Forwarder{Idle: idle}, func(conn net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
			for range 5 { // longer than the bound in all, but never silent that long
				_, _ = io.WriteString(conn, "x")
				time.Sleep(idle - time.Second)
			}
			_, _ = io.Copy(io.Discard, r)
		})
		began := time.Now()
		_, _ = io.WriteString(client, "GET http://x:1/ HTTP/1.1\r\nHost: x\r\n\r\n")
		resp := testutil.Must(http.ReadResponse(bufio.NewReader(client), nil))(t)
		got, err := io.ReadAll(resp.Body)
		testutil.Holds(t, string(got) == "xxxxx" && err != nil && !os.IsTimeout(err),
			"read %q, %v; want all that came and a broken end", got, err)
		testutil.Equal(t, time.Since(began), 4*(idle-time.Second)+idle, "time until it ended")
	})
}

// An exchange that ends before its answer has begun is answered, whichever side is
// silent.
func TestIdleExchangeIsAnswered(t *testing.T) {
	testutil.EachInBubble(t, map[string]string{
		"destination": "GET http://x:1/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"client":      "PUT http://x:1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
	}, func(t *testing.T, request string) {
		const idle = time.Minute
		client := piped(t, &tunnel.Forwarder{Idle: idle}, func(_ net.Conn, r *bufio.Reader) {
			_, _ = io.Copy(io.Discard, r)
		})
		began := time.Now()
		_ = client.SetDeadline(began.Add(time.Hour))
		_, _ = io.WriteString(client, request)
		resp := testutil.Must(http.ReadResponse(bufio.NewReader(client), nil))(t)
		testutil.Equal(t, resp.StatusCode, http.StatusGatewayTimeout, "status")
		testutil.Equal(t, time.Since(began), idle, "when it ended")
	})
}

// Once the process was stopped, what it waits for may have come meanwhile.
func TestExchangesOutliveAStoppedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		s := &Server{Shell: &front.Shell[*client]{Options: front.Options{Forwarder: &tunnel.Forwarder{Idle: idle}}}}
		ctx, cancel := context.WithCancelCause(t.Context())
		x := &exchange{server: s, ctx: ctx, cancel: cancel, rc: http.NewResponseController(httptest.NewRecorder())}
		x.mu.Lock()
		x.idle, x.due = time.AfterFunc(idle, x.giveUp), time.Now().Add(-time.Hour)
		x.mu.Unlock()
		time.Sleep(2*idle - time.Second)
		testutil.NoError(t, ctx.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		testutil.ErrorIs(t, context.Cause(ctx), errIdle, "the end of an exchange")
	})
}

// Nor is a destination silent that says, now and then, that it still works on the answer.
func TestInterimResponsesAreNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		defer time.Sleep(3 * idle) // after which the destination has ended, too
		client := piped(t, &tunnel.Forwarder{Idle: idle}, func(conn net.Conn, _ *bufio.Reader) {
			for range 3 {
				time.Sleep(idle - time.Second)
				_, _ = io.WriteString(conn, "HTTP/1.1 102 Processing\r\n\r\n")
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		})
		_, _ = io.WriteString(client, "GET http://x:1/ HTTP/1.1\r\nHost: x\r\n\r\n")
		r := bufio.NewReader(client)
		for _, want := range []int{102, 102, 102, 204} {
			testutil.Equal(t, testutil.Must(http.ReadResponse(r, nil))(t).StatusCode, want, "status")
		}
	})
}

// brittle is a client's connection on which nothing can be written after the first
// time.
type brittle struct {
	net.Conn
	written bool
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.written {
		return 0, os.ErrDeadlineExceeded
	}
	b.written = true
	return b.Conn.Write(p)
}

// A response of which the client does not get all was not sent in order.
func TestUnreadResponseIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := byPipe(func(far net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345")
		})
		seen, metrics := newDiary(), prometheus.NewRegistry()
		s := newServer(t, front.Options{Forwarder: &tunnel.Forwarder{Dialer: dial, Observers: []tunnel.Observer{seen}}, Registerer: metrics})
		client, conn := net.Pipe()
		done := wait.Go(func() { s.serveConn(t.Context(), tunnel.Wrap(&brittle{Conn: conn})) })
		_, _ = io.WriteString(client, "GET http://x:1/ HTTP/1.1\r\nHost: x\r\n\r\n")
		got, _ := io.ReadAll(client)
		testutil.Equal(t, strings.HasPrefix(string(got), "HTTP/1.1 200 OK\r\n"), true, "read %q", got)
		<-done
		s.CloseIdle()
		testutil.Requires(t, len(seen.ends) == 1, "observers were told %q", seen.all())
		testutil.Fails(t, <-seen.ends, "the end")
		broken := promtest.ToFloat64(s.Metrics.Requests.WithLabelValues(kindForward, outcomeBroken))
		testutil.Equal(t, broken, 1, "requests that were broken off")
	})
}

func TestUpgradeIsObservedAndIdleBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		seen, total := newDiary(), new(tunnel.Totals)
		client := piped(t, &tunnel.Forwarder{Observers: []tunnel.Observer{seen}, Idle: idle, Total: total}, func(conn net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		})
		fmt.Fprintf(client, upgradeRequest, "x:1")
		r := bufio.NewReader(client)
		testutil.Equal(t, testutil.Must(http.ReadResponse(r, nil))(t).StatusCode, 101, "the answer")
		began := time.Now()
		_, _ = io.WriteString(client, "12345")
		testutil.Fails(t, testutil.Err(r.ReadByte()), "a read of an idle connection")
		testutil.Between(t, time.Since(began), idle, 2*idle, "time until it ended")
		synctest.Wait()
		told := ""
		for _, line := range seen.all() {
			told += line[:7]
		}
		testutil.Equal(t, told, "dialed opened closed ", "what was observed")
		testutil.Equal(t, total.Up.Load(), 5, "bytes up")
	})
}

// A destination closes an idle connection as the next request arrives on it. One that
// must not be sent twice does not meet that.
func TestRequestsThatAreNotRepeatedAvoidOldConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := piped(t, &tunnel.Forwarder{}, func(conn net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			_, _ = r.ReadByte()
		})
		r := bufio.NewReader(client)
		for _, method := range []string{"GET", "POST", "DELETE", "PUT"} {
			fmt.Fprintf(client, "%s http://x:1/ HTTP/1.1\r\nHost: x\r\n\r\n", method)
			resp := testutil.Must(http.ReadResponse(r, nil))(t)
			testutil.Equal(t, resp.StatusCode, http.StatusOK, "%s: %q", method, body(t, resp))
			time.Sleep(briefTime)
			synctest.Wait()
		}
	})
}

// Connections that wait for the next request leave descriptors to others.
func TestIdleConnectionsLeaveDescriptors(t *testing.T) {
	dial := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, io.EOF })
	for descriptors, want := range map[int]int{0: maxIdle, 16: 2, 64: 4, 1 << 20: maxIdle} {
		s := newServer(t, front.Options{Forwarder: &tunnel.Forwarder{Dialer: dial}, Descriptors: descriptors})
		long, brief := s.transport.MaxIdleConns, s.brief.MaxIdleConns
		if long < 1 || brief < 1 || brief > max(1, want/8) || long+brief != want { // 0 would be no bound
			t.Errorf("%d and %d of %d descriptors may be idle, want %d in all", long, brief, descriptors, want)
		}
	}
}
