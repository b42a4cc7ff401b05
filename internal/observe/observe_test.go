package observe_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"konnectivity/internal/logging"
	"konnectivity/internal/observe"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// get asks handler in memory.
func get(handler http.Handler, url string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", url, nil))
	return w
}

func TestHealthMatchesUpstream(t *testing.T) {
	var broken error
	check := func() error { return broken }
	agent := observe.Health{Metrics: observe.NewRegistry("agent"), Checks: []observe.Check{{Name: "server-connected", Do: check}}}
	bare := observe.Health{Metrics: observe.NewRegistry("test")}
	server := observe.Health{Metrics: observe.NewRegistry("server"), Checks: []observe.Check{{Name: "agents", Do: check}}, Server: true}
	for _, c := range []struct {
		health observe.Health
		broken error
		url    string
		status int
		body   string
	}{
		{bare, nil, "/readyz", 200, "ok"},
		{agent, nil, "/healthz", 200, "ok"},
		{agent, nil, "/readyz", 200, "ok"},
		{agent, nil, "/ready", 200, "ok"},
		{agent, nil, "/readyz?verbose", 200, "[+]ping ok\n[+]server-connected ok\ncheck passed\n"},
		{agent, errors.New("none yet"), "/readyz", 503, "[+]ping ok\n[-]server-connected failed: none yet\n"},
		{agent, errors.New("none yet"), "/ready", 503, "[+]ping ok\n[-]server-connected failed: none yet\n"},
		{agent, errors.New("none yet"), "/healthz", 200, "ok"}, // one that waits for others is not to be restarted for it
		{agent, errors.New("none yet"), "/healthz?verbose", 200, "[+]ping ok\ncheck passed\n"},
		{server, nil, "/readyz", 200, "ok"},
		{server, errors.New("no agent is connected"), "/readyz", 500, "no agent is connected\n"},
		{server, errors.New("no agent is connected"), "/readyz?verbose", 500, "[+]ping ok\n[-]agents failed: no agent is connected\n"},
		{server, errors.New("no agent is connected"), "/healthz?verbose", 200, "[+]ping ok\ncheck passed\n"},
	} {
		broken = c.broken
		if w := get(c.health.Handler(), c.url); w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%s with %v: %d %q, want %d %q", c.url, c.broken, w.Code, w.Body, c.status, c.body)
		}
	}
}

func TestMetrics(t *testing.T) {
	registry := observe.NewRegistry("test")
	body := get(observe.Health{Metrics: registry}.Handler(), "/metrics").Body.String()
	for _, name := range []string{"go_goroutines ", "process_open_fds ", `konnectivity_build_info{`, `component="test"`} {
		testutil.Contains(t, body, name, "/metrics lacks")
	}
	testutil.Equal(t, len(testutil.Must(promtest.GatherAndLint(registry, "konnectivity_build_info"))(t)), 0, "problems of metrics")
}

func TestRedirectToPort(t *testing.T) {
	for host, want := range map[string]string{
		"h.test:8094": "http://h.test:8093/metrics?x=y",
		"h.test":      "http://h.test:8093/metrics?x=y",
		"[::1]:8094":  "http://[::1]:8093/metrics?x=y",
		"[::1]":       "http://[::1]:8093/metrics?x=y", // from port 80
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics?x=y", nil)
		r.Host = host
		observe.RedirectToPort(8093).ServeHTTP(w, r)
		got := w.Header().Get("Location")
		testutil.Holds(t, w.Code == 301 && got == want, "%s: %d %q, want %q", host, w.Code, got, want)
	}
}

// serve starts Serve, or ServeTLS, and returns its address and its result. A result that the
// test does not take has to be nil.
func serve(t *testing.T, ctx context.Context, config *tls.Config, h http.HandlerFunc) (net.Listener, <-chan error) {
	t.Helper()
	l := testutil.Listen(t)
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- observe.ServeTLS(ctx, l, config, h, logging.Silent())
	}()
	t.Cleanup(func() {
		testutil.Succeeds(t, <-done, "the server ends")
	})
	return l, done
}

func TestServeFinishesRequestsAndEndsWithItsContext(t *testing.T) {
	finished, why := false, ""
	for try := 0; try < 5 && !finished; try++ { // a busy machine may take longer than a server waits
		finished, why = finishes(t)
	}
	testutil.Holds(t, finished, "the request in flight was cut: %s", why)
}

// finishes ends a server in the middle of a request, and returns whether that got its answer.
func finishes(t *testing.T) (finished bool, why string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	entered := make(chan struct{})
	l, done := serve(t, ctx, nil, func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-ctx.Done()
		time.Sleep(200 * time.Millisecond) // long after a server that hurries has cut the connection
		_, _ = io.WriteString(w, "finished")
	})
	go func() { <-entered; cancel() }()
	var body []byte
	r, err := http.Get("http://" + l.Addr().String())
	if err == nil {
		body, err = io.ReadAll(r.Body)
		r.Body.Close()
	}
	cancel()
	testutil.Succeeds(t, <-done, "the server ends")
	testutil.Fails(t, testutil.Err(net.Dial("tcp", l.Addr().String())), "still listening")
	http.DefaultClient.CloseIdleConnections()
	return string(body) == "finished" && err == nil, fmt.Sprintf("%q, %v", body, err)
}

func TestServeCutsUnfinishedRequests(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	entered := make(chan struct{})
	l, done := serve(t, ctx, nil, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done() // until the connection is cut
	})
	c := testutil.Opened(net.Dial("tcp", l.Addr().String()))(t)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-entered
	cancel()
	select {
	case err := <-done:
		testutil.NoError(t, err)
	case <-time.After(testutil.Patience):
		t.Fatal("Serve waits for a request that never ends")
	}
	_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
	_, err := c.Read(make([]byte, 1))
	testutil.Holds(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "the connection is still open: %v", err)
}

func TestServeReturnsListenerError(t *testing.T) {
	l, done := serve(t, t.Context(), nil, http.NotFound)
	c := testutil.Opened(net.Dial("tcp", l.Addr().String()))(t)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
	testutil.Must(c.Read(make([]byte, 1)))(t)
	l.Close()
	testutil.ErrorIs(t, <-done, net.ErrClosed, "it ends")
	testutil.Succeeds(t, testutil.Err(io.Copy(io.Discard, c)), "a connection outlives Serve")
}

// Silent connections can take neither all descriptors nor the places of
// probes, however many there are.
func TestSilentConnectionsGiveWayToProbes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, done := serve(t, ctx, nil, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	client := &http.Client{Transport: &http.Transport{}, Timeout: testutil.Patience}
	defer client.CloseIdleConnections()
	ask := func() {
		t.Helper()
		r := testutil.Must(client.Get("http://" + l.Addr().String()))(t)
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		testutil.Requires(t, string(body) == "ok" && err == nil, "%q, %v", body, err)
	}
	const silent = 400
	conns := make([]net.Conn, silent)
	for i := range conns {
		c := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
		defer c.Close()
		conns[i] = c
		_, _ = io.WriteString(c, "GET"[:i%4]) // no request is whole
	}
	ask()
	closed := 0
	for _, c := range conns[:silent-256+1] { // the oldest; one more made room for the request
		_ = c.SetReadDeadline(time.Now().Add(testutil.Patience))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	testutil.Equal(t, closed, silent-256+1, "silent connections that were closed")
	ask() // by the connection that was kept
	cancel()
	testutil.NoError(t, testutil.Receive(t, "the server ends beside silent connections", done))
}
