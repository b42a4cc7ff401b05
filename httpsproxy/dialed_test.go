package httpsproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// deafened is a connection that takes the header of a request, and fails for
// what comes behind it.
type deafened struct {
	net.Conn
	written bool
}

func (d *deafened) Write(p []byte) (int, error) {
	if d.written {
		return 0, &tunnel.ResetError{Code: tunnel.CodePeerReset}
	}
	d.written = true
	return d.Conn.Write(p)
}

// uploadTo sends a request with more content than its destination takes, which
// handle serves, and returns what the client gets.
func uploadTo(t *testing.T, handle func(far net.Conn, r *bufio.Reader)) string {
	var all sync.WaitGroup
	dial := tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := byPipe(handle)(ctx, f)
		return tunnel.Wrap(&deafened{Conn: c}), err
	})
	s := newServer(t, front.Options{Forwarder: &tunnel.Forwarder{Dialer: dial}})
	client, conn := net.Pipe()
	all.Go(func() { s.serveConn(t.Context(), tunnel.Wrap(conn)) })
	all.Go(func() {
		_, _ = fmt.Fprintf(client, "POST http://x:1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n%100000s", "")
	})
	got, _ := io.ReadAll(client)
	_ = client.Close()
	all.Wait()
	s.CloseIdle()
	return string(got)
}

// A destination that refuses an upload and hangs up is heard to the end.
func TestResponseSurvivesRefusedUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := uploadTo(t, func(far net.Conn, _ *bufio.Reader) {
			time.Sleep(time.Second)
			_, _ = io.WriteString(far, "HTTP/1.1 413 Too Large\r\nContent-Length: 8\r\n\r\nmuch ")
			time.Sleep(time.Second)
			_, _ = io.WriteString(far, "too")
		})
		testutil.Holds(t, strings.HasPrefix(got, "HTTP/1.1 413") && strings.HasSuffix(got, "much too"), "read %q", got)
	})
}

// One that takes no more is waited for as long as it may yet answer.
func TestRefusedUploadEndsWithoutResponse(t *testing.T) {
	for name, tc := range map[string]struct {
		handle func(net.Conn, *bufio.Reader)
		within time.Duration
	}{
		"hangs up": {func(net.Conn, *bufio.Reader) {}, drainResponse},
		"silent":   {func(far net.Conn, _ *bufio.Reader) { _, _ = io.Copy(io.Discard, far) }, 2 * drainResponse},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			start := time.Now()
			if got := uploadTo(t, tc.handle); !strings.HasPrefix(got, "HTTP/1.1 502") || time.Since(start) > tc.within {
				t.Errorf("%q after %v", got, time.Since(start))
			}
		})
	}
}

// A client that has yet to send the rest of its content hears that its destination
// has hung up.
func TestDestinationHangsUpOnAStalledUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := piped(t, new(tunnel.Forwarder), func(_ net.Conn, r *bufio.Reader) {
			_, _ = io.ReadFull(r, make([]byte, len("half")))
		})
		began := time.Now()
		_ = client.SetDeadline(began.Add(time.Hour))
		_, _ = io.WriteString(client, "PUT http://x:1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
		resp := testutil.Must(http.ReadResponse(bufio.NewReader(client), nil))(t)
		testutil.Equal(t, resp.StatusCode, 502, "status")
		testutil.Equal(t, resp.Close, true, "the connection ends")
		testutil.AtMost(t, time.Since(began), time.Second, "time that it took")
	})
}
