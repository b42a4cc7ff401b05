package frontend

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestReadConnect(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, tc := range []struct {
		request string
		want    string // the authority, or
		status  int    // the refusal
		rest    string // what must be left unread
	}{
		{"CONNECT a.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "a.example:443", 0, ""},
		{"CONNECT a.example:443 HTTP/1.1\r\n\r\nhello", "a.example:443", 0, "hello"},
		{"CONNECT a.example:443 HTTP/1.0\nX: y\n\n\x16\x03", "a.example:443", 0, "\x16\x03"},
		{"\r\n\r\nCONNECT [::1]:80 HTTP/1.1\r\n\r\n", "[::1]:80", 0, ""},
		{"CONNECT [fe80::1%eth0]:80 HTTP/1.1\r\n\r\n", "[fe80::1%eth0]:80", 0, ""},
		{"CONNECT 10.0.0.1:10250 HTTP/1.1\r\nCookie: " + strings.Repeat("x", 20000) + "\r\nA: b\r\n\r\nz", "10.0.0.1:10250", 0, "z"},
		{"CONNECT a.example HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT :443 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a:0 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a:65536 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT " + long + ":443 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT http://a:443/ HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT user@a:443 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 b HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/2.0\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/1.10\r\n\r\n", "", 400, ""},
		{"GET / FTPX/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a:443\r\n\r\n", "", 400, ""},
		{"CONNECT  HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a\x00:443 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"CONNECT a\x7f:443 HTTP/1.1\r\n\r\n", "", 400, ""},
		{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", 405, ""},
		{"connect a:443 HTTP/1.1\r\n\r\n", "", 405, ""},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", 405, ""},
		{"nonsense\r\n", "", 400, ""},
		{"\r\n\r\n\r\n\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/1.1\r\nno colon\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/1.1\r\nnocolon\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/1.1\r\n folded: x\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/1.1\r\nA : x\r\n\r\n", "", 400, ""},
		{"CONNECT a:443 HTTP/1.1\r\n: x\r\n\r\n", "", 400, ""},
		{"CONNECT " + strings.Repeat("a", 5000), "", 400, ""},
		{"CONNECT a:443 HTTP/1.1\r\nA: b\r\n", "", 0, ""}, // ends early
		{"", "", 0, ""},
	} {
		r := bufio.NewReaderSize(strings.NewReader(tc.request), readAhead)
		got, err := readConnect(r)
		var bad *badRequest
		errors.As(err, &bad)
		name := tc.request[:min(40, len(tc.request))]
		switch {
		case tc.want != "":
			rest, _ := io.ReadAll(r)
			testutil.Holds(t, err == nil && got.authority == tc.want && string(rest) == tc.rest,
				"%q: %q, %v, left %q", name, got.authority, err, rest)
		case tc.status == 0:
			testutil.ErrorIs(t, err, io.EOF, "%q", name)
		default:
			testutil.Holds(t, bad != nil && bad.status == tc.status,
				"%q: %q, %v, want %d", name, got.authority, err, tc.status)
		}
	}
}

func TestConnectKeepsItsID(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for fields, want := range map[string]string{
		"Konnectivity-Id: 0123456789abcdef\r\n":                                        "0123456789abcdef",
		"traceparent: 00-" + trace + "-b7ad6b7169203331-01\r\n":                        trace,
		"KONNECTIVITY-ID:abc\r\nTraceparent: 00-" + trace + "-b7ad6b7169203331-01\r\n": "abc",
		"Konnectivity-Id: a b\r\nX: y\r\n":                                             "",
		"Konnectivity-Id: " + strings.Repeat("a", tunnel.MaxID+1) + "\r\n":             "",
		"traceparent: 00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01\r\n":      "",
		"Host: x\r\n": "",
	} {
		got, err := readConnect(bufio.NewReaderSize(strings.NewReader("CONNECT a:1 HTTP/1.1\r\n"+fields+"\r\n"), readAhead))
		testutil.Holds(t, err == nil && got.id == want && (got.span == 0xb7ad6b7169203331) == strings.Contains(fields, trace),
			"%q: %q, %x, %v, want %q", fields, got.id, got.span, err, want)
	}
}

func TestConnectReadsATokenOnly(t *testing.T) {
	for fields, want := range map[string]string{
		"Proxy-Authorization: Bearer abc.d-e_f\r\n":                         "abc.d-e_f",
		"proxy-authorization:bearer  abc\r\n":                               "abc",
		"Proxy-Authorization: Basic eDp5\r\n":                               "",
		"Proxy-Authorization: Bearer\r\n":                                   "",
		"Authorization: Bearer abc\r\n":                                     "", // the destination's
		"Proxy-Authorization: Bearer " + strings.Repeat("a", 5000) + "\r\n": "",
		"X: y\r\nProxy-Authorization: Bearer abc\r\nKonnectivity-Id: d\r\n": "abc",
	} {
		for _, line := range []string{"CONNECT a:1 HTTP/1.1", "GET / HTTP/1.1"} {
			got, err := readConnect(bufio.NewReaderSize(strings.NewReader(line+"\r\n"+fields+"\r\n"), readAhead))
			testutil.Holds(t, got.token == want && (err == nil) == strings.HasPrefix(line, "CONNECT"),
				"%s, %.60q: %q, %v", line, fields, got.token, err)
		}
	}
}

// FuzzReadConnect: no panic; what is accepted is a good address that net/http
// reads the same way where it accepts the request too; nothing beyond the empty
// line is taken.
func FuzzReadConnect(f *testing.F) {
	for _, address := range []string{"a.example:443", "[::1]:80", "10.0.0.1:1"} {
		req, _ := http.NewRequest(http.MethodConnect, "http://"+address, nil)
		var b bytes.Buffer
		_ = req.Write(&b)
		f.Add(b.Bytes())
	}
	f.Add([]byte("\r\nCONNECT a:1 HTTP/1.0\nb:c\n\nrest"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(data), readAhead)
		got, err := readConnect(r)
		if err != nil {
			return
		}
		authority := got.authority
		testutil.Requires(t, tunnel.CleanID(got.id) == got.id, "id %q", got.id)
		_, _, err = tunnel.SplitAddress(authority)
		testutil.Requires(t, err == nil, "accepted %q: %v", authority, err)
		rest, _ := io.ReadAll(r)
		head := data[:len(data)-len(rest)]
		testutil.Requires(t, bytes.HasSuffix(head, []byte("\n")), "the header ends in %q", head)
		if req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data))); err == nil && req.RequestURI != authority {
			t.Fatalf("net/http reads %q, we %q", req.RequestURI, authority)
		}
	})
}
