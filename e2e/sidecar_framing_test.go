package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"testing"
	"time"
)

// Nothing that frames or authenticates a message comes through behind its
// content, either way, and nothing is served behind a request that gives its
// length twice.
func TestWhatFramesMessagesIsNotPassedOn(t *testing.T) {
	w := newSuite(t)
	srv := must(w.StartServer())(t)
	must(w.StartAgent(srv))(t)
	p := must(w.StartHTTPS(srv))(t)
	const late = "Proxy-Authorization: x\r\nContent-Length: 9\r\nTransfer-Encoding: gzip\r\nX-Sum: kept\r\n\r\n"
	kept := http.Header{"X-Sum": {"kept"}}
	seen := make(chan *http.Request, 9)
	origin := listen(t, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		for {
			request, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			seen <- request
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+late)
		}
	})
	c := must(net.Dial("tcp", p.Address()))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = fmt.Fprintf(c, "POST http://%s/first HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n%s"+
		"GET http://%[1]s/second HTTP/1.1\r\nHost: x\r\n\r\n", origin, late)
	r := bufio.NewReader(c)
	response := must(http.ReadResponse(r, nil))(t)
	content := must(io.ReadAll(response.Body))(t)
	if string(content) != "ok" || !reflect.DeepEqual(response.Trailer, kept) || !response.Close {
		t.Errorf("the client gets %q with %v behind it; close: %v", content, response.Trailer, response.Close)
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("and then %q, %v", rest, err)
	}
	if first := <-seen; first.URL.Path != "/first" || !reflect.DeepEqual(first.Trailer, kept) || len(seen) > 0 {
		t.Errorf("the destination gets %s with %v behind it, and %d more", first.URL, first.Trailer, len(seen))
	}
}
