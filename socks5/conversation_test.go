package socks5

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

type static map[string]string

func (s static) Check(_ context.Context, _ net.Addr, user, password string) bool {
	return s[user] == password && user != ""
}

// name is the tail of a request for host and port.
func name(host string, port uint16) string {
	return "\x03" + string([]byte{byte(len(host))}) + host + string([]byte{byte(port >> 8), byte(port)})
}

const (
	hello     = "\x05\x01\x00"         // greeting: no authentication
	helloBoth = "\x05\x03\x01\x00\x02" // GSSAPI, none, user and password
	connectTo = "\x05\x01\x00"         // CONNECT, before the address
	ok        = "\x05\x00"             // method: no authentication
	success   = "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
)

func code(c byte) string { return "\x05" + string([]byte{c}) + "\x00\x01\x00\x00\x00\x00\x00\x00" }

// conversations are what clients say, what they must hear to the last byte, and
// what is then dialed.
var conversations = map[string]struct {
	send, want string
	dialed     string
	auth       bool
}{
	"IPv4":              {send: hello + connectTo + "\x01\x7f\x00\x00\x01\x00\x50", want: ok + success, dialed: "127.0.0.1:80"},
	"IPv6":              {send: hello + connectTo + "\x04" + string(net.ParseIP("2001:db8::1").To16()) + "\x01\xbb", want: ok + success, dialed: "[2001:db8::1]:443"},
	"IPv4 in IPv6":      {send: hello + connectTo + "\x04" + string(net.ParseIP("192.0.2.1").To16()) + "\x01\xbb", want: ok + success, dialed: "192.0.2.1:443"},
	"name":              {send: hello + connectTo + name("kubernetes.default.svc", 6443), want: ok + success, dialed: "kubernetes.default.svc:6443"},
	"name with dot":     {send: hello + connectTo + name("example.com.", 65535), want: ok + success, dialed: "example.com.:65535"},
	"name of 253":       {send: hello + connectTo + name(strings.Repeat("a", 253), 1), want: ok + success, dialed: strings.Repeat("a", 253) + ":1"},
	"name that is IPv6": {send: hello + connectTo + name("fd00::7", 80), want: ok + success, dialed: "[fd00::7]:80"},
	"reserved byte set": {send: hello + "\x05\x01\xff" + name("a", 1), want: ok + success, dialed: "a:1"},
	"no-auth among all": {send: "\x05\xff" + strings.Repeat("\x09", 254) + "\x00" + connectTo + name("a", 1), want: ok + success, dialed: "a:1"},

	"no methods":              {send: "\x05\x00", want: "\x05\xff"},
	"only unknown methods":    {send: "\x05\x02\x01\x80", want: "\x05\xff"},
	"password nobody asks":    {send: "\x05\x01\x02", want: "\x05\xff"},
	"BIND":                    {send: hello + "\x05\x02\x00" + name("a", 1), want: ok + code(7)},
	"UDP ASSOCIATE":           {send: hello + "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", want: ok + code(7)},
	"Tor RESOLVE":             {send: hello + "\x05\xf0\x00" + name("a", 1), want: ok + code(7)},
	"command 0":               {send: hello + "\x05\x00\x00" + name("a", 1), want: ok + code(7)},
	"address type 2":          {send: hello + connectTo + "\x02\x00\x00\x00\x00\x00\x00", want: ok + code(8)},
	"request of version 4":    {send: hello + "\x04\x01\x00" + name("a", 1), want: ok + code(1)},
	"empty name":              {send: hello + connectTo + name("", 80), want: ok + code(1)},
	"name with NUL":           {send: hello + connectTo + name("a\x00b", 80), want: ok + code(1)},
	"name with space":         {send: hello + connectTo + name("a b", 80), want: ok + code(1)},
	"name with port":          {send: hello + connectTo + name("a:443", 80), want: ok + code(1)},
	"name of 255":             {send: hello + connectTo + name(strings.Repeat("a", 255), 80), want: ok + code(1)},
	"port 0":                  {send: hello + connectTo + "\x01\x7f\x00\x00\x01\x00\x00", want: ok + code(1)},
	"SOCKS4":                  {send: "\x04\x01\x00\x50\x7f\x00\x00\x01me\x00", want: "\x00\x5b\x00\x00\x00\x00\x00\x00"},
	"HTTP":                    {send: "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", want: httpRefusal},
	"TLS":                     {send: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", want: "\x15\x03\x01\x00\x02\x02\x28"},
	"name not UTF-8":          {send: hello + connectTo + name("a\xbd", 80), want: ok + code(1)},
	"garbage":                 {send: "\x00", want: ""},
	"nothing":                 {send: "", want: ""},
	"half a greeting":         {send: "\x05\x02\x00", want: ""},
	"half a request":          {send: hello + connectTo + "\x03\x09loc", want: ok},
	"request without address": {send: hello + connectTo, want: ok},

	"user and password":      {send: helloBoth + "\x01\x04anna\x06secret" + connectTo + name("a", 1), want: "\x05\x02\x01\x00" + success, dialed: "a:1", auth: true},
	"client likes none best": {send: "\x05\x02\x00\x02" + "\x01\x04anna\x06secret" + connectTo + name("a", 1), want: "\x05\x02\x01\x00" + success, dialed: "a:1", auth: true},
	"password not offered":   {send: hello + connectTo + name("a", 1), want: "\x05\xff", auth: true},
	"wrong password":         {send: helloBoth + "\x01\x04anna\x05secre" + connectTo + name("a", 1), want: "\x05\x02\x01\x01", auth: true},
	"unknown user":           {send: helloBoth + "\x01\x03eve\x06secret", want: "\x05\x02\x01\x01", auth: true},
	"empty user":             {send: helloBoth + "\x01\x00\x00", want: "\x05\x02\x01\x01", auth: true},
	"authentication v2":      {send: helloBoth + "\x02\x04anna\x06secret", want: "\x05\x02\x01\x01", auth: true},
	"half a password":        {send: helloBoth + "\x01\x04anna\x06sec", want: "\x05\x02", auth: true},
}

func TestConversations(t *testing.T) {
	for title, c := range conversations {
		for how, talk := range map[string]func(*testing.T, *Server, string) string{
			"pipe": talkByPipe, "TCP": talkByTCP, "TCP byte by byte": func(t *testing.T, s *Server, send string) string {
				return overTCP(t, s, iotest.OneByteReader(strings.NewReader(send)), truncated(send))
			},
		} {
			if how == "pipe" && truncated(c.send) {
				continue // a pipe that ends loses the answer
			}
			t.Run(title+"/"+how, func(t *testing.T) {
				var dialed []string
				var o Options
				if c.auth {
					o.Credentials = static{"anna": "secret"}
				}
				s := newServer(t, o, tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
					dialed = append(dialed, f.Address)
					a, b := net.Pipe()
					_ = b.Close()
					return nameless{tunnel.Wrap(a)}, nil
				}))
				testutil.Equal(t, talk(t, s, c.send), c.want, "what was heard")
				if c.dialed == "" && len(dialed) > 0 || c.dialed != "" && (len(dialed) != 1 || dialed[0] != c.dialed) {
					t.Errorf("dialed %q, want %q", dialed, c.dialed)
				}
			})
		}
	}
}

// nameless is a connection without addresses, as konnectivity's client has.
type nameless struct{ tunnel.Conn }

func (nameless) LocalAddr() net.Addr { return nil }

func (nameless) RemoteAddr() net.Addr { return nil }

// talkByPipe says all of send and returns what it heard once the server is done.
func talkByPipe(_ *testing.T, s *Server, send string) string {
	client, served := s.pipe()
	var saying sync.WaitGroup
	saying.Go(func() { _, _ = client.Write([]byte(send)) })
	got, _ := io.ReadAll(client)
	<-served
	_ = client.Close()
	saying.Wait()
	return string(got)
}

// truncated says that send stops before the server can know what to answer.
func truncated(send string) bool {
	return send == "" || conversations["half a greeting"].send == send || conversations["half a request"].send == send ||
		conversations["request without address"].send == send || conversations["half a password"].send == send
}

func talkByTCP(t *testing.T, s *Server, send string) string {
	return overTCP(t, s, strings.NewReader(send), truncated(send))
}

func overTCP(t *testing.T, s *Server, send io.Reader, end bool) string {
	ln := testutil.Listen(t)
	client := connect(t, ln.Addr().String())
	conn := testutil.Must(ln.Accept())(t)
	served := make(chan struct{})
	go func() { defer close(served); s.serveConn(context.Background(), tunnel.Wrap(conn)) }()
	_, _ = io.Copy(onlyWriter{client}, send)
	if end {
		_ = client.CloseWrite()
	}
	got, err := io.ReadAll(client)
	testutil.Succeeds(t, err, "the last words")
	_ = client.Close()
	<-served
	return string(got)
}

// onlyWriter hides ReadFrom, which would gather single bytes.
type onlyWriter struct{ io.Writer }

func TestEveryFailureHasItsReply(t *testing.T) {
	for f, want := range map[tunnel.Failure]byte{
		tunnel.FailInternal: 1, tunnel.FailRefused: 5, tunnel.FailTimeout: 6, tunnel.FailHostUnreach: 4,
		tunnel.FailNetUnreach: 3, tunnel.FailNoSuchHost: 4, tunnel.FailResolve: 4, tunnel.FailDenied: 2,
		tunnel.FailBadAddress: 1, tunnel.FailNoAgent: 1, tunnel.FailAgentLost: 1, tunnel.FailExhausted: 1,
		tunnel.FailUnavailable: 1, tunnel.FailCancelled: 1, tunnel.FailAuth: 1, tunnel.FailReset: 5, 999: 1,
	} {
		s := newServer(t, Options{}, failing(f))
		// Bytes sent ahead must not turn the reply into a reset.
		send := hello + connectTo + name("a", 1) + strings.Repeat("x", 8000)
		testutil.Equal(t, talkByTCP(t, s, send), ok+code(want), "%v", f)
	}
}

func TestBoundAddress(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{nil, success},
		{(*net.TCPAddr)(nil), success},
		{tunnel.Addr{Net: "tcp", Text: "some.name:80"}, success},
		{tunnel.Addr{Net: "tcp", Text: "[::ffff:10.0.0.7]:4660"}, "\x05\x00\x00\x01\x0a\x00\x00\x07\x12\x34"},
		{&net.UnixAddr{Name: "@", Net: "unix"}, success},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 0x1234}, "\x05\x00\x00\x01\x0a\x00\x00\x07\x12\x34"},
		{&net.TCPAddr{IP: net.ParseIP("fd00::7"), Port: 1, Zone: "eth0"}, "\x05\x00\x00\x04" + string(net.ParseIP("fd00::7")) + "\x00\x01"},
	} {
		testutil.Equal(t, string(appendReply(nil, replySucceeded, boundAddress(c.addr))), c.want, "%v", c.addr)
	}
}
