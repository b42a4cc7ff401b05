package client_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/client"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

var _ interface {
	proxy.Dialer
	proxy.ContextDialer
} = (*client.Client)(nil)

func newClient(t *testing.T, change func(*client.Options)) *client.Client {
	t.Helper()
	o := options()
	change(&o)
	c := testutil.Must(client.New(o))(t)
	t.Cleanup(func() { testutil.NoError(t, c.Close()) })
	return c
}

// says sends text, and reads it back.
func says(t *testing.T, c net.Conn, text string) {
	t.Helper()
	testutil.Must(io.WriteString(c, text))(t)
	got := make([]byte, len(text))
	testutil.NoError(t, testutil.Err(io.ReadFull(c, got)))
	testutil.Equal(t, string(got), text, "the echo")
}

// Each way leads to the destination, and each direction ends by itself.
func TestWays(t *testing.T) {
	target := testutil.Echo(t)
	own := func(o *client.Options) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(testutil.Must(os.ReadFile("ca.crt"))(t))
		pair := testutil.Must(tls.LoadX509KeyPair("tls.crt", "tls.key"))(t)
		*o = client.Options{Address: o.Address, TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	}
	for name, c := range map[string]struct {
		change func(*client.Options)
		links  int
	}{
		"auto":     {func(*client.Options) {}, 1},
		"link":     {func(o *client.Options) { o.Mode = client.Link }, 1},
		"plain":    {func(o *client.Options) { o.ResumeWindow = -1 }, 1},
		"lanes":    {func(o *client.Options) { o.Lanes = 8 }, 1},
		"CONNECT":  {func(o *client.Options) { o.Mode = client.Connect }, 0},
		"own TLS":  {own, 1},
		"a socket": {func(o *client.Options) { *o = client.Options{Socket: socketPath} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cl := newClient(t, c.change)
			conn := testutil.Opened(cl.DialContext(client.WithID(t.Context(), "my-id"), "tcp", target))(t)
			testutil.Equal(t, dialedID.Load(), any("my-id"), "the id that the agent knows it by")
			says(t, conn, "hello")
			testutil.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
			testutil.Equal(t, string(testutil.Must(io.ReadAll(conn))(t)), "", "the rest")
			testutil.Equal(t, conn.RemoteAddr().String(), target, "its remote address")
			testutil.Equal(t, conn.RemoteAddr().Network(), "tcp", "its network")
			testutil.Holds(t, conn.LocalAddr() != nil, "it has no local address")
			testutil.Eventually(t, "the server is there", func() bool { return cl.Ready() == nil })
			if servers := cl.Servers(); len(servers) != c.links || c.links > 0 && servers[0].Address.String() != serverAddress {
				t.Errorf("links to %+v", servers)
			}
		})
	}
}

// The destination's reset is read as one, but by a unix socket, which has none.
func TestResets(t *testing.T) {
	target := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
		_ = c.Close()
	})
	for name, c := range map[string]struct {
		change func(*client.Options)
		want   error
	}{
		"auto":     {func(*client.Options) {}, syscall.ECONNRESET},
		"plain":    {func(o *client.Options) { o.ResumeWindow = -1 }, syscall.ECONNRESET},
		"CONNECT":  {func(o *client.Options) { o.Mode = client.Connect }, syscall.ECONNRESET},
		"a socket": {func(o *client.Options) { *o = client.Options{Socket: socketPath} }, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			conn := testutil.Opened(newClient(t, c.change).Dial("tcp", target))(t)
			testutil.Must(io.WriteString(conn, "x"))(t)
			testutil.ErrorIs(t, testutil.Err(conn.Read(make([]byte, 1))), c.want, "what it reads")
		})
	}
}

// What is open when its client is closed says so.
func TestClosedClients(t *testing.T) {
	testutil.Each(t, map[string]time.Duration{"auto": 0, "plain": -1}, func(t *testing.T, window time.Duration) {
		c := newClient(t, func(o *client.Options) { o.ResumeWindow = window })
		conn := testutil.Opened(c.Dial("tcp", testutil.Echo(t)))(t)
		read := make(chan error)
		go func() { read <- testutil.Err(conn.Read(make([]byte, 1))) }()
		testutil.NoError(t, c.Close())
		for what, err := range map[string]error{"a read": <-read, "a write": testutil.Err(conn.Write([]byte("x")))} {
			testutil.ErrorIs(t, err, net.ErrClosed, "%s", what)
			testutil.ErrorIs(t, err, syscall.ECONNRESET, "%s", what)
			testutil.Holds(t, strings.Contains(err.Error(), "this process closed"), "%s says %v", what, err)
		}
	})
}

// connectProxy is an HTTP proxy that can cut what it carries.
type connectProxy struct {
	mu    sync.Mutex
	asked []string
	conns []net.Conn
}

func (p *connectProxy) serve(near *net.TCPConn) {
	request, err := http.ReadRequest(bufio.NewReader(near))
	if err != nil {
		return
	}
	if user, password, _ := basicAuth(request); user+password != "userpass" {
		_, _ = io.WriteString(near, "HTTP/1.1 407 Who are you?\r\nContent-Length: 0\r\n\r\n")
		return
	}
	far, err := net.Dial("tcp", serverAddress)
	if err != nil {
		return
	}
	defer far.Close()
	p.mu.Lock()
	p.asked, p.conns = append(p.asked, request.Host), append(p.conns, near, far)
	p.mu.Unlock()
	_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
	_, _ = io.Copy(near, far)
	_ = near.Close()
}

func basicAuth(r *http.Request) (user, password string, ok bool) {
	r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
	return r.BasicAuth()
}

func (p *connectProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// The server is reached by a proxy, which is told its name; and when what that carries is
// cut, a connection goes on.
func TestConnectionsOutliveTheirLink(t *testing.T) {
	p := new(connectProxy)
	at := testutil.Serve(t, p.serve)
	t.Cleanup(p.cut)
	c := newClient(t, func(o *client.Options) {
		o.Address, o.ServerName = "konnectivity.test:8090", "localhost"
		o.Proxy = &url.URL{Scheme: "http", Host: at, User: url.UserPassword("user", "pass")}
	})
	conn := testutil.Must(c.Dial("tcp", testutil.Echo(t)))(t)
	defer conn.Close()
	says(t, conn, "before")
	p.cut()
	says(t, conn, "after")
	p.mu.Lock()
	defer p.mu.Unlock()
	testutil.Requires(t, len(p.asked) >= 2, "the proxy was asked for %q", p.asked)
	testutil.Equal(t, p.asked[0], "konnectivity.test:8090", "the first of it")
}

func TestFailures(t *testing.T) {
	p := new(connectProxy)
	proxyAt := testutil.Serve(t, p.serve)
	none := testutil.Refusing(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	closed := newClient(t, func(*client.Options) {})
	testutil.NoError(t, closed.Close())
	link, sock := newClient(t, func(*client.Options) {}), newClient(t, func(o *client.Options) { *o = client.Options{Socket: socketPath} })
	testutil.Eventually(t, "the server is there", func() bool { return link.Ready() == nil })
	for name, c := range map[string]struct {
		client           *client.Client
		ctx              context.Context
		network, address string
		want             client.Failure
		says             string
	}{
		"nobody listens":       {link, t.Context(), "tcp", none, client.Refused, "refused"},
		"the same by a socket": {sock, t.Context(), "tcp", none, client.Refused, "refused"},
		"no port":              {link, t.Context(), "tcp", "a", client.BadAddress, "want host:port"},
		"not TCP":              {sock, t.Context(), "udp", none, client.BadAddress, "only TCP"},
		"given up":             {link, over, "tcp", webAddress, client.Cancelled, ""},
		"given up at a socket": {sock, over, "tcp", webAddress, client.Cancelled, ""},
		"closed":               {closed, t.Context(), "tcp", webAddress, client.Unavailable, "the client is closed"},
		"no server":            {newClient(t, func(o *client.Options) { o.Address = none }), t.Context(), "tcp", webAddress, client.Unavailable, "konnectivity server refuses"},
		"no socket":            {newClient(t, func(o *client.Options) { *o = client.Options{Socket: "none.sock"} }), t.Context(), "tcp", webAddress, client.Unavailable, "socket"},
		"another's certificate": {newClient(t, func(o *client.Options) { o.ServerName = "another.test" }), t.Context(), "tcp", webAddress,
			client.Unavailable, "not trusted"},
		"no role": {newClient(t, func(o *client.Options) { o.RequirePeerRole = true }), t.Context(), "tcp", webAddress, client.Unavailable, "role"},
		"a proxy that wants a password": {newClient(t, func(o *client.Options) { o.Proxy = &url.URL{Scheme: "http", Host: proxyAt} }), t.Context(), "tcp", webAddress,
			client.Unavailable, "answered 407"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := c.client.DialContext(c.ctx, c.network, c.address)
			var typed *client.DialError
			if conn != nil || !errors.As(err, &typed) || client.FailureOf(err) != c.want || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %v and %q", err, c.want, c.says)
			}
			if c.want == client.Unavailable && c.client != closed { // of others it may not have a link yet
				testutil.Eventually(t, "Ready says the same, unless there is a socket", func() bool {
					ready := c.client.Ready()
					return name == "no socket" || ready != nil && strings.Contains(err.Error(), ready.Error())
				})
			}
		})
	}
}

// Files that change are read again, and the next link is made with them.
func TestRenewedFiles(t *testing.T) {
	t.Parallel() // it waits for the next look at them
	other, file := testutil.Must(pki.NewCA("another"))(t), filepath.Join(t.TempDir(), "ca.crt")
	testutil.NoError(t, pki.WriteCert(file, other.CertPEM))
	c := newClient(t, func(o *client.Options) { o.CAFile = file })
	testutil.ErrorSays(t, testutil.Err(c.Dial("tcp", webAddress)), "not trusted", "a dial by another CA")
	testutil.NoError(t, os.WriteFile(file, testutil.Must(os.ReadFile("ca.crt"))(t), 0o600))
	testutil.Eventually(t, "the server is there", func() bool { return c.Ready() == nil })
}

// A dial fails at once when its Client is closed, whatever it waits for.
func TestCloseEndsDials(t *testing.T) {
	testutil.Opened(net.Listen("unix", "silent.sock"))(t)
	tcp := testutil.Listen(t)
	for name, o := range map[string]client.Options{
		"a socket": {Socket: "silent.sock"},
		"a server": {Address: tcp.Addr().String(), CAFile: "ca.crt"},
	} {
		c := testutil.Must(client.New(o))(t)
		failed := testutil.Later(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			_, err := c.DialContext(ctx, "tcp", webAddress)
			return err
		})
		select {
		case err := <-failed:
			t.Errorf("%s: it does not wait: %v", name, err)
			continue
		case <-time.After(20 * time.Millisecond): // enough for most dials to wait
		}
		testutil.NoError(t, c.Close())
		if err := testutil.Receive(t, "the error of "+name, failed); !errors.Is(err, net.ErrClosed) || client.FailureOf(err) != client.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		testutil.ErrorIs(t, testutil.Err(c.Dial("tcp", webAddress)), net.ErrClosed, "a dial of %s later", name)
	}
}

func TestOptionsThatCanNeverWork(t *testing.T) {
	for want, change := range map[string]func(*client.Options){
		"Options.Address: want either it or Socket": func(o *client.Options) { o.Socket = socketPath },
		"Options.Address: \"a\": want host:port":    func(o *client.Options) { o.Address = "a" },
		"Options.Mode: \"off\"":                     func(o *client.Options) { o.Mode = "off" },
		"Options.Mode: links need TLS":              func(o *client.Options) { *o = client.Options{Socket: socketPath, Mode: client.Link} },
		"Options.Socket: want no":                   func(o *client.Options) { o.Address, o.Socket = "", socketPath },
		"Options.TLS: want either":                  func(o *client.Options) { o.TLS = new(tls.Config) },
		"Options.ResumeWindow":                      func(o *client.Options) { o.ResumeWindow = time.Hour },
		"Options.Name":                              func(o *client.Options) { o.Name = "a\r\nb" },
		"Options.MaxServers":                        func(o *client.Options) { o.MaxServers = -1 },
		"Options.Lanes: want a number":              func(o *client.Options) { o.Lanes = 9 },
		"Options.Lanes: want":                       func(o *client.Options) { o.Lanes = -1 },
		"Options.PeerTrustDomain":                   func(o *client.Options) { o.PeerTrustDomain = "A B" },
		"Options.Proxy: its scheme": func(o *client.Options) {
			o.Proxy = &url.URL{Scheme: "socks5", User: url.UserPassword("u", "secret"), Host: "a:1"}
		},
		"none.key": func(o *client.Options) { o.KeyFile = "none.key" },
	} {
		o := options()
		change(&o)
		if c, err := client.New(o); c != nil || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for what, o := range map[string]client.Options{"ServerName": {ServerName: "a"}, "TokenFile": {TokenFile: "a"}, "TLS": {TLS: new(tls.Config)}, "Proxy": {Proxy: new(url.URL)}} {
		o.Socket = socketPath
		testutil.ErrorSays(t, testutil.Err(client.New(o)), "Options.Socket: want no ", "a socket and %s", what)
	}
}

func TestFlags(t *testing.T) {
	parse := func(args ...string) (client.Options, error) {
		o := client.Options{Name: "driver/1"}
		set := flag.NewFlagSet("driver", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		o.AddFlags(set)
		return o, set.Parse(args)
	}
	o, err := parse()
	if err != nil || o.Address != "konnectivity-server-local:8090" || o.ResumeWindow != client.DefaultResumeWindow || o.Mode != client.Auto || o.Name != "driver/1" {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse("--konnectivity-port=1", "--konnectivity-hostname=::1", "--resume-window=0", "--link=off", "--ca-cert-path="+filepath.Join("a", "b"))
	if err != nil || o.Address != "[::1]:1" || o.ResumeWindow >= 0 || o.Mode != client.Connect || o.CAFile != filepath.Join("a", "b") {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse("--server-name=s", "--require-peer-role", "--peer-trust-domain=d", "--link-lanes=3", "--max-servers=2")
	if err != nil || o.ServerName != "s" || !o.RequirePeerRole || o.PeerTrustDomain != "d" || o.Lanes != 3 || o.MaxServers != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	const usual = "/etc/konnectivity/proxy-client/tls.crt"
	for args, want := range map[string]string{
		"--token-path=": usual, "--token-path=t": "", "--tls-cert-path=c --token-path=t": "c", "--tls-key-path=k --token-path=t": usual,
	} {
		testutil.Equal(t, testutil.Must(parse(strings.Fields(args)...))(t).CertFile, want, "the certificate with %s", args)
	}
	for _, bad := range []string{"--konnectivity-hostname=a:1", "--konnectivity-port=0", "--resume-window=-1s", "--link=connect"} {
		testutil.ErrorSays(t, testutil.Err(parse(bad)), "want ", "%s", bad)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("KONNECTIVITY_ADDRESS", "[::1]:9")
	t.Setenv("KONNECTIVITY_TLS_CERT_PATH", "")
	t.Setenv("KONNECTIVITY_TLS_KEY_PATH", "")
	t.Setenv("KONNECTIVITY_LINK", "off")
	o, err := client.FromEnvironment()
	if err != nil || o.Address != "[::1]:9" || o.CAFile != "/etc/konnectivity/proxy-ca/ca.crt" || o.CertFile+o.KeyFile != "" || o.Mode != client.Connect {
		t.Errorf("%+v, %v", o, err)
	}
	t.Setenv("KONNECTIVITY_ADDRESS", "no port")
	testutil.ErrorSays(t, testutil.Err(client.FromEnvironment()), `KONNECTIVITY_ADDRESS="no port": want a`, "no port")
	t.Setenv("KONNECTIVITY_SOCKET", socketPath)
	testutil.Equal(t, testutil.Must(client.FromEnvironment())(t).Socket, socketPath, "the socket")
	newClient(t, func(to *client.Options) { *to = testutil.Must(client.FromEnvironment())(t) })
}

func TestLog(t *testing.T) {
	var log testutil.Output
	newClient(t, func(o *client.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	testutil.Eventually(t, "a line", func() bool {
		return strings.Contains(log.String(), `level=INFO msg="reached the konnectivity server" server=`+serverAddress)
	})
	newClient(t, func(o *client.Options) {
		o.Address, o.Log = testutil.Refusing(t), slog.New(slog.NewTextHandler(&log, nil))
	})
	testutil.Eventually(t, "a warning", func() bool {
		return strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "error=")
	})
}
