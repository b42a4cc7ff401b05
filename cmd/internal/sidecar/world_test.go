package sidecar

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// patience bounds every wait for something that happens at once.
const patience = time.Minute

// world is a konnectivity server, as thin as one can be: HTTP CONNECT over
// mTLS, dialing by itself. Sidecars in a test speak to it.
type world struct {
	t    *testing.T
	dir  string
	pair pki.Pair // of the server
	ca   *pki.CA
	addr string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	w := &world{t: t, dir: t.TempDir(), ca: ca}
	w.pair = testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Lifetime: time.Hour}))(t)
	client := testutil.Must(ca.Issue(pki.Leaf{CommonName: "sidecar", Client: true, Lifetime: time.Hour}))(w.t)
	for name, pem := range map[string][]byte{"ca.crt": ca.CertPEM, "tls.crt": client.CertPEM, "tls.key": client.KeyPEM} {
		testutil.NoError(w.t, os.WriteFile(filepath.Join(w.dir, name), pem, 0o600))
	}
	w.addr = testutil.ReservedAddress(t)
	return w
}

// startServer brings the server up.
func (w *world) startServer() {
	w.t.Helper()
	config := &tls.Config{
		Certificates: []tls.Certificate{w.pair.TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: w.ca.Pool(), NextProtos: []string{"http/1.1"},
	}
	testutil.ServeAt(w.t, w.addr, func(c *net.TCPConn) { serveConnect(tls.Server(c, config)) })
}

func serveConnect(c *tls.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	req, err := http.ReadRequest(br)
	if err != nil {
		return
	}
	far, err := net.Dial("tcp", req.Host)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 18\r\n\r\nconnection refused")
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		_ = far.Close()
		return
	}
	_ = (&tunnel.Relay{A: tunnel.Wrap(c), B: tunnel.Wrap(far)}).Run(context.Background())
}

// site is an HTTP server to reach through the tunnel.
func (w *world) site() string {
	w.t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "hello "+r.URL.Path)
	}))
	w.t.Cleanup(s.Close)
	return s.URL
}

// running is a sidecar that serves.
type running struct {
	log   testutil.Output
	addrs map[Front]string
	uds   string // of the first front
	check string // address of health
	admin string // address of the admin port
	stop  func() error
}

// options are those of a sidecar of this world, by real flags.
func (w *world) options(front Front, args ...string) *Options {
	w.t.Helper()
	host, port, _ := net.SplitHostPort(w.addr)
	args = append([]string{
		"run", "--serving-port=0", "--konnectivity-hostname=" + host, "--konnectivity-port=" + port, "--kubeconfig=",
		"--ca-cert-path=" + filepath.Join(w.dir, "ca.crt"), "--tls-cert-path=" + filepath.Join(w.dir, "tls.crt"), "--tls-key-path=" + filepath.Join(w.dir, "tls.key"),
	}, args...)
	o, status, said := parse(w.t, front, args...)
	testutil.Requires(w.t, status == 0, "%v", said)
	return o
}

// start runs a sidecar until the test ends.
func (w *world) start(o *Options) *running {
	w.t.Helper()
	r := &running{addrs: map[Front]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := compose(o, logTo(&r.log))
	if err != nil {
		cancel()
		w.t.Fatal(err)
	}
	for _, f := range s.fronts {
		if address := f.ln.Addr(); address.Network() == "unix" && address.String() == o.ServingUDS {
			r.uds = address.String()
		} else {
			r.addrs[f.front] = address.String()
		}
	}
	if s.health != nil {
		r.check = "http://" + s.health.Addr().String()
	}
	if s.admin != nil {
		r.admin = s.admin.Addr().String()
	}
	ended := testutil.Later(func() error { return s.run(ctx) })
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the sidecar does not stop")
		}
	})
	w.t.Cleanup(func() {
		testutil.Succeeds(w.t, r.stop(), "run")
	})
	return r
}

// logTo returns a logger whose lines out keeps.
func logTo(out io.Writer) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(out)
	return log
}
