package socks5

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/proxy"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestRealClientWithPassword(t *testing.T) {
	t.Parallel() // it waits
	log, lines := logBuffer()
	s := serve(t, Options{Options: front.Options{Log: log}, Credentials: static{"anna": "correct horse"}}, direct)
	address := testutil.Serve(t, echo)
	testutil.NoError(t, through(connect(t, s.addr), address, &proxy.Auth{User: "anna", Password: "correct horse"}))
	wrong := &proxy.Auth{User: "anna", Password: "battery staple"}
	testutil.Fails(t, through(connect(t, s.addr), address, wrong), "a wrong password")
	testutil.Fails(t, through(connect(t, s.addr), address, nil), "no password")
	_ = s.stop()
	if got := lines.String(); strings.Contains(got, "horse") || strings.Contains(got, "staple") {
		t.Errorf("a password is in the log:\n%s", got)
	} else if !strings.Contains(got, "wrong user or password") {
		t.Errorf("the refusal is not in the log:\n%s", got)
	}
}

// What a client sends before it has heard the reply comes first and whole,
// whether it fits what the handshake reads ahead or not.
func TestPipelinedBytes(t *testing.T) {
	address := testutil.Serve(t, echo)
	host, p, _ := net.SplitHostPort(address)
	port, _ := net.LookupPort("tcp", p)
	for _, size := range []int{1, admission.AheadSize - 30, admission.AheadSize, admission.AheadSize + 1, 300_000} {
		for _, delay := range []time.Duration{0, 30 * time.Millisecond} {
			s := serve(t, Options{}, tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
				time.Sleep(delay) // so that all of it, and the FIN, come before the reply
				return direct(ctx, f.To(address))
			}))
			payload := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{}).Read(payload)
			c := connect(t, s.addr)
			go func() {
				_, _ = c.Write(append([]byte(hello+connectTo+name(host, uint16(port))), payload...))
				_ = c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			testutil.Holds(t, err == nil && len(got) >= 12 && bytes.Equal(got[12:], payload),
				"%d bytes ahead, dial of %v: got %d bytes, %v", size, delay, len(got), err)
			_ = s.stop()
		}
	}
}

func TestClientThatLeavesCancelsItsDial(t *testing.T) {
	testutil.Each(t, map[string]func(*net.TCPConn){
		"FIN":              func(c *net.TCPConn) { _ = c.Close() },
		"RST":              func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"RST after a byte": func(c *net.TCPConn) { _, _ = c.Write([]byte("x")); _ = c.SetLinger(0); _ = c.Close() },
	}, func(t *testing.T, leave func(*net.TCPConn)) {
		d, dialing, cancelled := blocked()
		s := serve(t, patient(d), nil)
		c := connect(t, s.addr)
		_, _ = c.Write([]byte(hello + connectTo + name("slow", 1)))
		_ = testutil.Receive(t, "dialing", dialing)
		leave(c)
		testutil.Contains(t, testutil.Receive(t, "cancelled", cancelled), "the client left", "why it was cancelled")
	})
}

// A dial that succeeds just as its client leaves must not stay open.
func TestLateSuccessIsNotLeaked(t *testing.T) {
	ended := make(chan string, 1)
	address := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.ReadAll(c); ended <- "closed" })
	dialing := make(chan struct{})
	s := serve(t, Options{}, tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		close(dialing)
		<-ctx.Done()
		return direct(context.Background(), f.To(address)) // too late, and it does not care
	}))
	c := connect(t, s.addr)
	_, _ = c.Write([]byte(hello + connectTo + name("slow", 1)))
	_ = testutil.Receive(t, "dialing", dialing)
	_ = c.Close()
	_ = testutil.Receive(t, "ended", ended)
	testutil.Eventually(t, "it is counted as given up", func() bool {
		return promtest.ToFloat64(s.Metrics.Requests.WithLabelValues(tunnel.FailCancelled.Label())) == 1
	})
}
