package httpsproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// diary is an observer that keeps what it is told.
type diary struct {
	mu    sync.Mutex
	lines []string
	flows []*tunnel.Flow
	ends  chan error // how they ended
}

func newDiary() *diary { return &diary{ends: make(chan error, 16)} }

func (d *diary) add(what string, req *tunnel.Flow, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%s %s %s %s by %q: %v", what, req.ID, req.Front, req.Address, req.Hop, err))
}

func (d *diary) Dialed(req *tunnel.Flow, _ time.Duration, err error) { d.add("dialed", req, err) }

func (d *diary) Unanswered(req *tunnel.Flow, _ time.Duration, err error) {
	d.add("unanswered", req, err)
}

func (d *diary) Opened(req *tunnel.Flow) {
	d.add("opened", req, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flows = append(d.flows, req)
}

func (d *diary) Closed(req *tunnel.Flow, _ time.Duration, err error) {
	d.add("closed", req, err)
	d.ends <- err
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.lines...)
}

func (d *diary) flow(i int) *tunnel.Flow {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i >= len(d.flows) {
		return nil
	}
	return d.flows[i]
}

// nobody is an address that refuses.
const nobody = "nobody.test:80"

// observed is a proxy whose plain requests are written down; its dials go by
// the hop "server s1".
func observed(t *testing.T) (*proxy, *diary, *tunnel.Totals) {
	d, total := newDiary(), new(tunnel.Totals)
	p := startProxy(t, func(o *Options) {
		o.Forwarder.Observers, o.Forwarder.Total = []tunnel.Observer{d}, total
		o.Forward = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			f.Hop = tunnel.Hop{Role: "server", ID: "s1"}
			if f.Address == nobody {
				return nil, &tunnel.DialError{Failure: tunnel.FailRefused, Address: f.Address}
			}
			return dialTCP(ctx, f)
		})
	})
	return p, d, total
}

const traceA, traceB = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319d"

// Each exchange is a connection; only the one that needed it is told as dialed.
func TestPlainRequestsAreObserved(t *testing.T) {
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})
	p, seen, total := observed(t)
	w := dialWire(t, p.addr)
	for _, id := range []string{traceA, traceB} {
		w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\ntraceparent: 00-%s-b7ad6b7169203331-01\r\nContent-Length: 3\r\n\r\nabc", origin, id)
		testutil.Equal(t, body(t, w.response(http.MethodPost)), "hello", "content")
	}
	want := []string{}
	for _, line := range []string{"dialed " + traceA, "opened " + traceA, "closed " + traceA, "opened " + traceB, "closed " + traceB} {
		want = append(want, fmt.Sprintf(`%s forward %s by "server s1": <nil>`, line, origin))
	}
	testutil.Eventually(t, "the second end", func() bool { return len(seen.all()) == len(want) })
	testutil.Equal(t, fmt.Sprint(seen.all()), fmt.Sprint(want), "what was observed")
	for i := range 2 {
		testutil.Equal(t, fmt.Sprint(seen.flow(i).Sent()), "3 5", "bytes up and down in exchange %d", i)
		testutil.Equal(t, fmt.Sprint(seen.flow(i).Held()), "false false", "what exchange %d holds up and down", i)
	}
	testutil.Equal(t, total.Up.Load(), 6, "bytes up in all")
	testutil.Equal(t, total.Down.Load(), 10, "bytes down in all")
}

func TestPlainRequestsThatFailAreObserved(t *testing.T) {
	p, seen, _ := observed(t)
	w := dialWire(t, p.addr)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\ntraceparent: 00-%s-b7ad6b7169203331-01\r\n\r\n", nobody, traceA)
	_ = body(t, w.response(http.MethodGet))
	want := fmt.Sprintf(`[dialed %s forward %s by "server s1": dial %s: connection refused]`, traceA, nobody, nobody)
	testutil.Equal(t, fmt.Sprint(seen.all()), want, "what was observed")

	// One that breaks off after it was reached was open.
	broken := testutil.Serve(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); _ = c.SetLinger(0) })
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", broken)
	_ = body(t, w.response(http.MethodGet))
	testutil.Eventually(t, "the end", func() bool { return len(seen.all()) >= 4 })
	got := seen.all()
	testutil.Holds(t, got[3][:6] == "closed" && got[3][len(got[3])-5:] != "<nil>", "observed %q", got)
}

// A side that does not read shows, in both directions, and only while it lasts.
func TestPlainRequestsThatStallAreObserved(t *testing.T) {
	t.Parallel()          // it waits
	const much = 32 << 20 // more than sockets hold
	read := make(chan struct{})
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-read
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		_, _ = w.Write(make([]byte, much))
	})
	p, seen, _ := observed(t)
	stalls := func(i int, up bool) {
		t.Helper()
		testutil.Eventually(t, "a stall", func() bool {
			if seen.flow(i) == nil {
				return false
			}
			heldUp, heldDown := seen.flow(i).Held()
			sentUp, sentDown := seen.flow(i).Sent()
			time.Sleep(100 * time.Millisecond)
			laterUp, laterDown := seen.flow(i).Held()
			movedUp, movedDown := seen.flow(i).Sent()
			still := sentUp == movedUp && sentDown == movedDown
			return still && heldUp == up && laterUp == up && heldDown == !up && laterDown == !up
		})
	}
	w := dialWire(t, p.addr)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", origin)
	stalls(0, false)
	testutil.Equal(t, len(body(t, w.response(http.MethodGet))), much, "bytes")

	w = dialWire(t, p.addr)
	sent := make(chan error, 1)
	w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", origin, much)
	go func() { _, err := io.Copy(w, bytes.NewReader(make([]byte, much))); sent <- err }()
	stalls(1, true)
	close(read)
	testutil.NoError(t, testutil.Receive(t, "the content's end", sent))
	_ = body(t, w.response(http.MethodPost))
	up, _ := seen.flow(1).Sent()
	testutil.Equal(t, up, much, "bytes up")
}

// A destination that is slow to answer stalls nobody.
func TestASlowAnswerIsNoStall(t *testing.T) {
	answer := make(chan struct{})
	origin := startOrigin(t, func(http.ResponseWriter, *http.Request) { <-answer })
	p, seen, _ := observed(t)
	w := dialWire(t, p.addr)
	w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", origin)
	testutil.Eventually(t, "the content's end", func() bool {
		if seen.flow(0) == nil {
			return false
		}
		sent, _ := seen.flow(0).Sent()
		held, _ := seen.flow(0).Held()
		return sent == 3 && !held
	})
	close(answer)
	_ = body(t, w.response(http.MethodPost))
}

// The id of a request's client is the id of its dial: of CONNECT, of a plain
// request and of an upgraded one; an id that is no trace-id is replaced.
func TestTraceParentFollowsTheDial(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	ids, parents := make(chan string, 1), make(chan uint64, 2)
	target := testutil.Echo(t)
	origin := startOrigin(t, hello)
	p := startProxy(t, func(o *Options) {
		o.Forwarder.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			ids <- f.ID
			return dialTCP(ctx, f)
		})
		o.Forward = o.Forwarder.Dialer
		o.Forwarder.Observers = append(o.Forwarder.Observers, tracer{parents: parents})
	})
	for parent, kept := range map[string]bool{
		"00-" + trace + "-b7ad6b7169203331-01": true,
		"00-" + trace + "-0000000000000000-01": false,
		trace:                                  false,
	} {
		for kind, request := range map[string]string{
			"CONNECT": fmt.Sprintf("CONNECT %s HTTP/1.1\r\nTraceparent: %s\r\n\r\n", target, parent),
			"GET":     fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: x\r\ntraceparent: %s\r\nConnection: close\r\n\r\n", origin, parent),
		} {
			w := dialWire(t, p.addr)
			w.send("%s", request)
			if kind == "GET" {
				_, _ = io.Copy(io.Discard, w.r)
			} else {
				w.head()
			}
			p.transport.CloseIdleConnections()
			id, span := testutil.Receive(t, "the dial's id", ids), testutil.Receive(t, "its parent", parents)
			testutil.Holds(t, (id == trace) == kept && id != "" && (span == 0xb7ad6b7169203331) == kept,
				"%s with %q runs under %q and %x", kind, parent, id, span)
		}
	}
}

// tracer tells the parents of dials that begin.
type tracer struct {
	tunnel.Observer
	parents chan uint64
}

func (tr tracer) Trace(f *tunnel.Flow) { tr.parents <- f.Span.Parent }

func (tracer) Dialed(*tunnel.Flow, time.Duration, error) {}

func (tracer) Unanswered(*tunnel.Flow, time.Duration, error) {}

func (tracer) Opened(*tunnel.Flow) {}

func (tracer) Closed(*tunnel.Flow, time.Duration, error) {}
