package socks5

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestAccessLog(t *testing.T) {
	t.Parallel() // it waits
	var lines strings.Builder
	log := logrus.New()
	log.SetFormatter(&logrus.JSONFormatter{})
	log.SetOutput(&lines)
	address := testutil.Serve(t, echo)
	s := serve(t, Options{Options: front.Options{AccessLog: true, Log: log, Drain: testutil.Patience}}, tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Address != address {
			return failing(tunnel.FailDenied).Dial(ctx, f)
		}
		return direct(ctx, f)
	}))
	c := mustThrough(t, s, address)
	_, _ = c.Write([]byte("12345"))
	_ = c.CloseWrite()
	_, _ = io.ReadAll(c)
	_ = through(connect(t, s.addr), "metadata:80", nil)
	_ = s.stop()

	got := map[string]map[string]any{}
	for line := range strings.Lines(lines.String()) {
		var m map[string]any
		testutil.NoError(t, json.Unmarshal([]byte(line), &m))
		got[m["destination"].(string)] = m
	}
	if m := got[address]; m["outcome"] != "ok" || m["bytes_up"] != 5.0 || m["bytes_down"] != 5.0 || m["client"] == "" || m["id"] == "" {
		t.Errorf("the connection that worked: %v", m)
	}
	testutil.Equal(t, got["metadata:80"]["outcome"], "denied", "the outcome of the one that failed")
	testutil.Equal(t, got["metadata:80"]["msg"], "connection failed", "its message")
	for outcome, want := range map[string]float64{front.OutcomeOK: 1, tunnel.FailDenied.Label(): 1} {
		n := promtest.ToFloat64(s.Metrics.Requests.WithLabelValues(outcome))
		testutil.Equal(t, n, want, "requests that were %s", outcome)
	}
}

// Without an access log, a dial that failed has its line: a client hears a number alone.
func TestLogTellsOfFailedDials(t *testing.T) {
	t.Parallel() // it waits
	for failure, want := range map[tunnel.Failure]int{0: 0, tunnel.FailRefused: 1, tunnel.FailCancelled: 0} {
		var lines strings.Builder
		log := logrus.New()
		log.SetOutput(&lines)
		dialer := failing(failure)
		if failure == 0 {
			dialer = direct
		}
		s := serve(t, Options{Options: front.Options{Log: log.WithField("component", "x")}}, dialer)
		_ = through(connect(t, s.addr), testutil.Serve(t, echo), nil)
		_ = s.stop()
		testutil.Equal(t, strings.Count(lines.String(), "level=warning msg=\"connection failed: refused\""), want, "warnings of %v", failure)
		testutil.Equal(t, strings.Count(lines.String(), "\n"), want, "lines of %v", failure)
	}
}

// One port for both: HTTP goes on, whole, and counts no more here.
func TestOtherTakesHTTP(t *testing.T) {
	got := make(chan tunnel.Conn, 1)
	s := serve(t, Options{Options: front.Options{MaxConns: 1}, Other: func(c tunnel.Conn) { got <- c }}, direct)
	address := testutil.Echo(t)
	c := connect(t, s.addr)
	_, _ = c.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
	conn := <-got
	defer conn.Close()
	_ = c.CloseWrite()
	testutil.Equal(t, string(testutil.Must(io.ReadAll(conn))(t)), "GET / HTTP/1.0\r\n\r\n", "what it reads")
	testutil.Eventually(t, "its slot is free", func() bool { return s.Slots.Count() == 0 })
	_ = mustThrough(t, s, address)
	testutil.NoError(t, s.stop())
	testutil.Succeeds(t, testutil.Err(conn.Write([]byte("x"))), "a write, after the SOCKS5 front's end")
}

func TestOtherTakesOnlyHTTP(t *testing.T) {
	s := newServer(t, Options{Other: func(c tunnel.Conn) { t.Error("got it"); _ = c.Close() }}, direct)
	for _, said := range []string{"\x04", "\x16\x03\x01", "\x00", "\x05\x00"} {
		_ = talkByTCP(t, s, said)
	}
	client, conn := net.Pipe()
	_ = client.Close()
	s.serveConn(context.Background(), tunnel.Wrap(conn))
}
