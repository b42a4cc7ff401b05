package httpsproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// Interim responses pass, each with its own header, but not to clients of HTTP/1.0.
func TestInterimResponses(t *testing.T) {
	var answer strings.Builder
	for i := range 5 {
		fmt.Fprintf(&answer, "HTTP/1.1 103 Early Hints\r\nX-%d: 1\r\nLink: </%d>\r\nConnection: X-Mine\r\nX-Mine: 1\r\n\r\n", i, i)
	}
	origin, _ := rawOrigin(t, answer.String()+"HTTP/1.1 204 No Content\r\nX-Final: 1\r\n\r\n")
	p := startProxy(t, nil)
	w := dialWire(t, p.addr)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", origin)
	for i := range 5 {
		status, header := w.head()
		testutil.Equal(t, status, "HTTP/1.1 103 Early Hints", "status of response %d", i)
		sameLines(t, header, []string{fmt.Sprintf("X-%d: 1", i), fmt.Sprintf("Link: </%d>", i)})
	}
	status, header := w.head()
	if all := strings.Join(header, "\n"); status != "HTTP/1.1 204 No Content" || !strings.Contains(all, "X-Final: 1") || strings.Contains(all, "Link") {
		t.Errorf("%q %q", status, header)
	}
	old := dialWire(t, p.addr)
	old.send("GET http://%s/ HTTP/1.0\r\n\r\n", origin)
	status, _ = old.head()
	testutil.Contains(t, status, " 204 ", "what an HTTP/1.0 client gets")
}

// A client that waits for 100 (Continue) also gets the interim responses before and after it.
// Each is whole, even where the proxy itself sends the 100 between two of them.
func TestInterimResponsesAroundContinue(t *testing.T) {
	const early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
	testutil.Each(t, map[string]string{"from the destination": "HTTP/1.1 100 Continue\r\n\r\n", "from the proxy": ""}, func(t *testing.T, says100 string) {
		origin := testutil.Serve(t, func(c *net.TCPConn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, strings.Repeat(early, 40)+says100+strings.Repeat(early, 40))
			_, _ = io.ReadFull(r.Body, make([]byte, 4))
			_, _ = io.WriteString(c, early+"HTTP/1.1 204 No Content\r\n\r\n")
		})
		p := startProxy(t, nil)
		p.brief.ExpectContinueTimeout = 100 * time.Microsecond
		if says100 != "" {
			p.brief.ExpectContinueTimeout = 2 * maxWait
		}
		w := dialWire(t, p.addr)
		w.send("PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", origin)
		got := make(map[string]int)
		for got["HTTP/1.1 204 No Content"] == 0 {
			status, header := w.head()
			if strings.Contains(status, " 103 ") {
				sameLines(t, header, []string{"Link: </a>"})
			}
			if got[status]++; strings.Contains(status, " 100 ") {
				w.send("data")
			}
		}
		testutil.Holds(t, len(got) == 3 && got["HTTP/1.1 103 Early Hints"] == 81 && got["HTTP/1.1 100 Continue"] == 1,
			"received %v", got)
	})
}

// A client that sends its content without being told to is sent no 100 (Continue).
func TestEmptyExpectExpectsNothing(t *testing.T) {
	origin := testutil.Serve(t, func(c *net.TCPConn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	w := dialProxy(t, nil)
	w.send("PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect:\r\n\r\ndata", origin)
	status, _ := w.head()
	testutil.Contains(t, status, " 204 ", "the answer")
}

// A destination that goes on sending interim responses is cut off, be they many,
// large, or of a kind that is not passed on.
func TestInterimResponsesAreBounded(t *testing.T) {
	testutil.Each(t, map[string]string{
		"many":         "HTTP/1.1 103 Early Hints\r\n\r\n",
		"continue":     "HTTP/1.1 100 Continue\r\n\r\n",
		"large":        "HTTP/1.1 102 Processing\r\nX: " + strings.Repeat("x", maxInterimHeader/4) + "\r\n\r\n",
		"short fields": "HTTP/1.1 103 Early Hints\r\n" + strings.Repeat("X: 1\r\n", maxInterimHeader/4/fieldOverhead) + "\r\n",
	}, func(t *testing.T, one string) {
		cut := make(chan error, 1)
		origin := testutil.Serve(t, func(c *net.TCPConn) {
			_ = c.SetWriteDeadline(time.Now().Add(maxWait))
			var err error
			for err == nil {
				_, err = c.Write([]byte(one))
			}
			cut <- err
		})
		w := dialProxy(t, nil)
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", origin)
		passed := 0
		status, _ := w.head()
		for ; !strings.Contains(status, " 502 "); status, _ = w.head() {
			passed++
		}
		testutil.AtMost(t, passed, maxInterim, "interim responses that passed")
		testutil.Holds(t, !os.IsTimeout(<-cut), "the destination's connection stays")
	})
}

// narrow has the kernel keep little of what is written, however fast it is.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		_ = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// A client that does not read interim responses keeps its exchange no longer
// than one that does not read anything else.
func TestInterimResponsesToAStalledClientEnd(t *testing.T) {
	origin, _ := rawOrigin(t, strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("x", 50<<10)+"\r\n\r\n", 4))
	p := startProxyOn(t, narrow{testutil.Listen(t)}, func(o *Options) { o.Forwarder.Idle = 100 * time.Millisecond })
	w := dialWire(t, p.addr)
	_ = w.SetReadBuffer(4096)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", origin) // should the time be over before any came
	for start := time.Now(); p.Slots.Count() > 0; time.Sleep(10 * time.Millisecond) {
		testutil.Requires(t, time.Since(start) <= maxWait, "the exchange goes on")
	}
}

// Fields that frame, route, authenticate or modify a message are no trailers,
// and neither are those of one hop; announced or not, in both directions.
func TestForbiddenTrailersAreDropped(t *testing.T) {
	forbidden := []string{
		"Authorization", "Proxy-Authorization", "Host", "Max-Forwards", "If-Match", "Range", "Expect", "Cache-Control", "Te", "Upgrade", "Connection", "Keep-Alive",
		"Content-Length", "Transfer-Encoding", "Trailer", "Content-Type", "Content-Encoding", "Content-Range", "Content-Location",
		"Www-Authenticate", "Proxy-Authenticate", "Set-Cookie", "Cookie", "Location", "Vary", "Age", "Date", "Expires", "Via", "X-Forwarded-For", "X-Hop",
	}
	var lines, announce string
	for _, name := range forbidden {
		lines += name + ": 1\r\n"
		switch name { // announced, net/http refuses the message for these three
		case "Content-Length", "Transfer-Encoding", "Trailer":
		default:
			announce += ", " + name
		}
	}
	lines += "X-Sum: kept\r\nEtag: \"kept\"\r\nContent-Digest: kept\r\n"
	for name, announced := range map[string]string{"announced": "Trailer: X-Sum, Etag, Content-Digest" + announce + "\r\n", "not announced": ""} {
		t.Run(name, func(t *testing.T) {
			check := func(who string, trailer http.Header) {
				for _, name := range forbidden {
					_, there := trailer[name]
					testutil.Holds(t, !there, "%s gets %s", who, name)
				}
				if trailer.Get("X-Sum") != "kept" || trailer.Get("Etag") != `"kept"` || trailer.Get("Content-Digest") != "kept" {
					t.Errorf("%s gets %v", who, trailer)
				}
			}
			seen := make(chan http.Header, 1)
			origin := testutil.Serve(t, func(c *net.TCPConn) {
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\n"+announced+"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"+lines+"\r\n")
				buf := make([]byte, 10)
				for err == nil {
					_, err = r.Body.Read(buf)
				}
				seen <- r.Trailer
			})
			w := dialProxy(t, nil)
			w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: X-Hop\r\n%sTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n%s\r\n", origin, announced, lines)
			resp := w.response("POST")
			testutil.Equal(t, body(t, resp), "hi", "content")
			check("the client", resp.Trailer)
			check("the destination", <-seen)
		})
	}
}
