package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/cmd/internal/program"
	"konnectivity/internal/cli"
	"konnectivity/internal/front"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// get fetches a URL by the proxy; CONNECT if by is "connect".
func get(by, proxyAddr, target string) (string, error) {
	t := &http.Transport{DisableKeepAlives: true}
	switch by {
	case "socks5":
		t.Proxy = http.ProxyURL(&url.URL{Scheme: by, Host: proxyAddr})
	case "http":
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.test"})
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialProxy(ctx, proxyAddr) }
	case "connect":
		t.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialConnect(ctx, proxyAddr, address)
		}
	case "":
	}
	client := &http.Client{Transport: t, Timeout: patience}
	resp, err := client.Get(target)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return string(body), err
}

// dialProxy connects to a port, or to a unix socket by its path.
func dialProxy(ctx context.Context, proxyAddr string) (net.Conn, error) {
	network := "tcp"
	if filepath.IsAbs(proxyAddr) {
		network = "unix"
	}
	return new(net.Dialer).DialContext(ctx, network, proxyAddr)
}

// dialConnect asks as kube-apiserver does, which knows no name of its proxy.
func dialConnect(ctx context.Context, proxyAddr, address string) (net.Conn, error) {
	c, err := dialProxy(ctx, proxyAddr)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", address)
	var head []byte
	for one := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, one...) {
		if _, err := io.ReadFull(c, one); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	if !strings.HasPrefix(string(head), "HTTP/1.1 200") {
		_ = c.Close()
		return nil, errors.New(string(head))
	}
	return c, nil
}

func TestEveryFrontCarriesTraffic(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	site := w.site()
	_, port, _ := net.SplitHostPort(testutil.ReservedAddress(t))
	for name, o := range map[string]*Options{
		"socks5 alone":               w.options(SOCKS5, "--health-address=127.0.0.1:0"),
		"http alone":                 w.options(HTTP),
		"socks5 and http":            w.options(SOCKS5, "--http-serving-port="+port),
		"http and socks5":            w.options(HTTP, "--socks5-serving-port="+port),
		"both on one port":           w.options(SOCKS5, "--serving-port="+port, "--http-serving-port="+port),
		"both on one port, reversed": w.options(HTTP, "--serving-port="+port, "--socks5-serving-port="+port),
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			r := w.start(o)
			testutil.Requires(t, o.shared() == (r.addrs[SOCKS5] == r.addrs[HTTP]), "listening on %v", r.addrs)
			for _, by := range []string{"socks5", "http", "connect"} {
				front := HTTP
				if by == "socks5" {
					front = SOCKS5
				}
				addr, on := r.addrs[front]
				if !on {
					continue
				}
				got, err := get(by, addr, site+"/"+by)
				testutil.Holds(t, err == nil && got == "hello /"+by, "%s: %q, %v\n%s", by, got, err, r.log.String())
			}
			if name == "socks5 alone" {
				page := testutil.Must(get("", "", r.check+"/metrics"))(t)
				for _, metric := range []string{
					`konnectivity_sidecar_relayed_bytes_total{direction="up",front="socks5"}`, "konnectivity_socks5_requests_total", "konnectivity_build_info",
				} {
					testutil.Contains(t, page, metric, "the metrics")
				}
			}
			testutil.NoError(t, r.stop())
		})
	}
}

// A server that says nothing holds clients up no longer than --dial-timeout.
func TestDialTimeout(t *testing.T) {
	w := newWorld(t)
	testutil.ServeAt(t, w.addr, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	r := w.start(w.options(SOCKS5, "--dial-timeout=200ms"))
	start := time.Now()
	testutil.Fails(t, testutil.Err(get("socks5", r.addrs[SOCKS5], "http://10.0.0.1")), "a server that says nothing")
	took := time.Since(start)
	testutil.Holds(t, took < tunnel.DefaultDialTimeout/2, "the answer took %v", took)
}

func TestStartWithoutCertificates(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	r := w.start(w.options(SOCKS5, "--tls-cert-path=/nowhere/tls.crt", "--tls-key-path=/nowhere/tls.key", "--ca-cert-path=/nowhere/ca.crt"))
	testutil.ErrorSays(t, testutil.Err(get("socks5", r.addrs[SOCKS5], w.site())), "general SOCKS server failure",
		"without certificates")
	testutil.Contains(t, r.log.String(), "/nowhere/tls.crt", "the log")
}

func TestPortsInUse(t *testing.T) {
	w := newWorld(t)
	taken := testutil.Listen(t)
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	_, free, _ := net.SplitHostPort(testutil.ReservedAddress(t))
	for flag, o := range map[string]*Options{
		"--serving-port":        w.options(SOCKS5, "--serving-port="+port),
		"--http-serving-port":   w.options(SOCKS5, "--serving-port="+free, "--http-serving-port="+port),
		"--socks5-serving-port": w.options(HTTP, "--serving-port="+free, "--socks5-serving-port="+port),
		"--health-address":      w.options(SOCKS5, "--serving-port="+free, "--health-address="+taken.Addr().String()),
	} {
		err := attempt(t, o)
		var usage *cli.UsageError
		testutil.Holds(t, err != nil && strings.HasPrefix(err.Error(), flag+": cannot listen on ") &&
			!errors.As(err, &usage), "%s on a taken port: %v", flag, err)
		ln, err := net.Listen("tcp", "127.0.0.1:"+free)
		if err != nil {
			t.Errorf("%s: another port was left open: %v", flag, err)
			continue
		}
		_ = ln.Close()
	}
}

func TestInvalidValuesAreStartErrors(t *testing.T) {
	w := newWorld(t)
	broken := filepath.Join(w.dir, "users")
	testutil.NoError(w.t, os.WriteFile(broken, []byte("hunter2\n"), 0o600))
	for args, c := range map[string]struct {
		want  string
		usage bool
	}{
		"--socks5-credentials-file=/nowhere":                                     {"--socks5-credentials-file: ", false},
		"--socks5-credentials-file=" + broken:                                    {"is not user:password", false},
		"--http-serving-port=1 --https-proxy=ftp://u:hunter2@p":                  {"--https-proxy: its scheme is neither http nor https; want ", true},
		"--http-serving-port=1 --http-proxy=http://u:hunter2@p:port/":            {"--http-proxy: not a URL", true},
		"--direct-suffix=not/a/domain":                                           {"--direct-suffix: want a domain name, got ", true},
		"--kubeconfig=/k --resolve-from-guest-cluster-dns --guest-dns-service=x": {"--guest-dns-service: want NAMESPACE/NAME, got ", true},
	} {
		err := attempt(t, w.options(SOCKS5, strings.Fields(args)...))
		var usage *cli.UsageError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &usage) != c.usage {
			t.Errorf("%s: %v", args, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error holds a password: %v", args, err)
		}
	}
}

// attempt runs a sidecar that is expected to refuse; one that does not is
// stopped after a moment.
func attempt(t *testing.T, o *Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return run(ctx, o, logging.Silent())
}

// A connection that is open when the sidecar is told to stop may finish; then, and not
// before, the sidecar ends. While it drains, the next one can have its socket, and the
// former's end does not take that away.
func TestDrainLetsConnectionsFinish(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	ln := testutil.Listen(t)
	options := w.options(HTTP, "--serving-uds="+filepath.Join(t.TempDir(), "s"), "--health-address=127.0.0.1:0")
	r := w.start(options)
	near := testutil.Must(dialConnect(t.Context(), r.uds, ln.Addr().String()))(w.t)
	defer near.Close()
	far := testutil.Must(ln.Accept())(w.t)
	defer far.Close()

	stopped := testutil.Later(r.stop)
	testutil.Eventually(t, "/readyz says that it is shutting down", func() bool {
		_, err := get("", "", r.check+"/readyz")
		return err != nil && strings.Contains(err.Error(), "shutting down")
	})
	testutil.Eventually(t, "the socket is gone during the drain", func() bool { _, err := os.Lstat(r.uds); return errors.Is(err, os.ErrNotExist) })
	next := w.start(options)
	_, _ = far.Write([]byte("late"))
	testutil.Succeeds(t, testutil.Err(io.ReadFull(near, make([]byte, 4))), "read while draining")
	select {
	case err := <-stopped:
		t.Fatalf("stopped under an open connection: %v", err)
	default:
	}
	_ = near.Close()
	_ = far.Close()
	testutil.NoError(t, <-stopped)
	testutil.Equal(t, testutil.Must(get("connect", next.uds, w.site()+"/next"))(t), "hello /next", "the next sidecar")
}

func TestDrainIsBounded(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	r := w.start(w.options(HTTP, "--drain-timeout=50ms"))
	near := testutil.Must(dialConnect(t.Context(), r.addrs[HTTP], testutil.Listen(t).Addr().String()))(t)
	defer near.Close()
	start := time.Now()
	testutil.NoError(t, r.stop())
	testutil.AtMost(t, time.Since(start), defaultDrain/2, "it drained for")
}

// All fronts on all ports require the same credentials.
func TestCredentials(t *testing.T) {
	w := newWorld(t)
	w.startServer()
	file := filepath.Join(w.dir, "users")
	testutil.NoError(w.t, os.WriteFile(file, []byte("anna:secret\n"), 0o600))
	site, port := w.site(), strconv.Itoa(testutil.Reserved(t))
	for name, o := range map[string]*Options{
		"socks5":      w.options(SOCKS5, "--socks5-credentials-file="+file),
		"http":        w.options(HTTP, "--socks5-credentials-file="+file),
		"on one port": w.options(SOCKS5, "--serving-port="+port, "--http-serving-port="+port, "--socks5-credentials-file="+file),
	} {
		r := w.start(o)
		for front, address := range r.addrs {
			for user, want := range map[*url.Userinfo]int{nil: 407, url.UserPassword("anna", "secret"): 200, url.UserPassword("anna", "other"): 407} {
				by := &url.URL{Scheme: string(front), Host: address, User: user}
				c := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(by), DisableKeepAlives: true}}
				res, err := c.Get(site)
				if err == nil {
					_ = res.Body.Close()
				}
				refused := front == SOCKS5 && err != nil && want != 200
				testutil.Holds(t, refused || err == nil && res.StatusCode == want,
					"%s, %s as %v: %v, %v", name, front, user, res, err)
			}
		}
		testutil.NoError(w.t, r.stop())
	}
}

// What shares the sidecar's pod goes on for a while after SIGTERM, as an API server does that has
// not yet left its Service, and needs the proxy until then.
func TestShutdownDelay(t *testing.T) {
	failed := errors.New("x")
	fails := func(context.Context) error { return failed }
	waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		front, part func(context.Context) error
		want        time.Duration
		says        string
	}{
		"stopped":            {waits, waits, 15 * time.Second, "going on as before for the delay,stopping; open connections may finish"},
		"a front that fails": {fails, waits, 0, "stopping; open connections may finish"},
		"a part that fails":  {waits, fails, 0, "stopping; open connections may finish"},
	} {
		t.Run(name, func(t *testing.T) {
			ln := testutil.Listen(t)
			synctest.Test(t, func(t *testing.T) {
				log, hook := logtest.NewNullLogger()
				s := &sidecar{opts: &Options{delay: 15 * time.Second}, Base: program.Base{Log: log}}
				s.fronts = []frontListener{{ln: ln, serve: func(ctx context.Context, _ net.Listener) error { return c.front(ctx) }}}
				start := time.Now()
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				want := failed
				if name == "stopped" {
					want = nil
					stop()
				}
				testutil.Equal(t, s.serveBeside(ctx, c.part), want, "the end")
				testutil.Equal(t, time.Since(start), c.want, "it accepted for")
				var said []string
				for _, e := range hook.AllEntries() {
					if e.Message != "serving" {
						said = append(said, e.Message)
					}
				}
				testutil.Equal(t, strings.Join(said, ","), c.says, "the log")
			})
		})
	}
}

// Every metric is documented, with the values of its labels.
func TestMetricsAreDocumented(t *testing.T) {
	w := newWorld(t)
	args := []string{"--http-serving-port=" + strconv.Itoa(testutil.Reserved(t)), "--audit-log=" + filepath.Join(t.TempDir(), "audit")}
	if front.Redirects {
		args = append(args, "--transparent-port="+strconv.Itoa(testutil.Reserved(t)))
	}
	s := testutil.Must(compose(w.options(SOCKS5, args...), logTo(new(testutil.Output))))(t)
	defer s.Close()
	const own, page, others = "konnectivity_sidecar_", "../../../docs/sidecars.md", "../../../docs/metrics.md"
	documented := testutil.DocumentedLabels(t, page, "Metrics")
	maps.Copy(documented, testutil.DocumentedLabels(t, others, "Certificates", "Audit log"))
	for name, labels := range testutil.DocumentedLabels(t, others, "Of both") {
		documented[own+name] = labels
	}
	all := testutil.Must(s.Registry.Gather())(t)
	for _, f := range all {
		name := f.GetName()
		_, known := documented[name]
		ours := strings.HasPrefix(name, "konnectivity_") && name != "konnectivity_build_info"
		testutil.Holds(t, known || !ours, "%s is in neither page", name)
	}
	documented.Check(t, "", all, "konnectivity_socks5_requests_total", "konnectivity_https_proxy_requests_total", "konnectivity_transparent_requests_total",
		"konnectivity_sidecar_dials_total")
}
