package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// whole is a suite with everything running, and a target behind the agent.
type whole struct {
	*suite.Suite
	server *suite.Server
	agent  *suite.Agent
	socks  *suite.Sidecar
	https  *suite.Sidecar
	target *target
}

func newWhole(t *testing.T) *whole {
	t.Helper()
	w := &whole{Suite: newSuite(t), target: newTarget(t)}
	w.server = must(w.StartServer())(t)
	w.agent = must(w.StartAgent(w.server))(t)
	w.socks = must(w.StartSOCKS5(w.server))(t)
	w.https = must(w.StartHTTPS(w.server))(t)
	return w
}

// way is how curl goes through the suite.
type way struct {
	name string
	args []string
	tls  bool // to the target with TLS
}

func (w *whole) ways(t *testing.T) []way {
	ca := filepath.Join(w.Dir, "target-ca.crt")
	if err := os.WriteFile(ca, w.target.ca.CertPEM, 0o644); err != nil {
		t.Fatal(err)
	}
	proxyTLS := []string{"--proxytunnel", "--proxy", "https://" + suite.Loopback(w.server.ClientPort),
		"--proxy-cacert", w.PKI("ca.crt"), "--proxy-cert", w.PKI("client.crt"), "--proxy-key", w.PKI("client.key")}
	return []way{
		{"socks5-hostname", []string{"--socks5-hostname", w.socks.Address()}, false},
		{"socks5", []string{"--socks5", w.socks.Address()}, false},
		{"proxy", []string{"--proxy", "http://" + w.https.Address()}, false},
		{"proxytunnel", []string{"--proxytunnel", "--proxy", "http://" + w.https.Address()}, false},
		{"proxy to https", []string{"--proxy", "http://" + w.https.Address(), "--cacert", ca}, true},
		{"server, CONNECT over mTLS", proxyTLS, false},
	}
}

func (w *whole) url(wy way, path string) string {
	base := w.target.plain.URL
	if wy.tls {
		base = w.target.secure.URL
	}
	return strings.Replace(base, "127.0.0.1", "localhost", 1) + path
}

func TestCurlReachesTheTargetByEveryWay(t *testing.T) {
	w := newWhole(t)
	const size = 5<<20 + 3
	upload := filepath.Join(w.Dir, "upload")
	f := must(os.Create(upload))(t)
	if _, err := io.Copy(f, newPayload(2, size)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, wy := range w.ways(t) {
		t.Run(wy.name, func(t *testing.T) {
			got, err := curl(t, append(wy.args, w.url(wy, fmt.Sprintf("/1/%d", size)))...)
			if err != nil {
				t.Fatal(err)
			}
			if h, _ := hashOf(bytes.NewReader(got)); h != sum(1, size) {
				t.Errorf("the download of %d bytes differs", len(got))
			}
			got, err = curl(t, append(wy.args, "--upload-file", upload, w.url(wy, "/"))...)
			if err != nil || string(got) != sum(2, size) {
				t.Errorf("the target's hash of the upload is %q, %v", got, err)
			}
		})
	}
}

func TestCurlHearsWhy(t *testing.T) {
	w := newWhole(t)
	closed := testutil.Refusing(t)
	connect := w.ways(t)[5].args
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"refused by SOCKS5", []string{"--socks5-hostname", w.socks.Address(), "http://" + closed}, "(5)"}, // RFC 1928 §6: connection refused
		{"refused by CONNECT", append(connect, "http://"+closed), "502"},
		{"no such host", append(connect, "http://no-such-host.invalid"), "502"},
		{"refused by the HTTPS sidecar", []string{"--proxy", "http://" + w.https.Address(), "http://" + closed}, "502"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := curl(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s in it", err, c.want)
			}
		})
	}
}

// A thousand requests at once, by every front, each byte checked.
func TestAThousandRequestsAtOnce(t *testing.T) {
	w := newWhole(t)
	proxies := []*url.URL{
		{Scheme: "socks5h", Host: w.socks.Address()},
		{Scheme: "http", Host: w.https.Address()},
	}
	const requests, size = 1000, 100_000
	want := make([]string, 10)
	for seed := range want {
		want[seed] = sum(int64(seed), size)
	}
	var wg sync.WaitGroup
	limit := make(chan struct{}, 250)
	for i := range requests {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			tr := &http.Transport{Proxy: http.ProxyURL(proxies[i%len(proxies)]), DisableKeepAlives: true}
			res, err := (&http.Client{Transport: tr}).Get(fmt.Sprintf("%s/%d/%d", w.target.plain.URL, i%len(want), size))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if h, err := hashOf(res.Body); err != nil || h != want[i%len(want)] {
				t.Errorf("request %d: %s, body differs, %v", i, res.Status, err)
			}
		})
	}
	wg.Wait()
}

// An agent that is replaced under load: requests fail while there is none, and
// never with wrong bytes; afterwards all succeed.
func TestAgentRestartUnderLoad(t *testing.T) {
	w := newWhole(t)
	const size = 200_000
	want := sum(3, size)
	get := func() error {
		tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: w.https.Address()}), DisableKeepAlives: true}
		res, err := (&http.Client{Transport: tr}).Get(fmt.Sprintf("%s/3/%d", w.target.plain.URL, size))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", res.Status)
		}
		h, err := hashOf(res.Body)
		if err == nil && h != want {
			t.Error("a body arrived whole and differs")
		}
		return err
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = get()
				}
			}
		})
	}
	w.agent.Kill()
	ready(t, w.server, 0, patience)
	must(w.StartAgent(w.server))(t)
	ready(t, w.server, 1, patience)
	close(stop)
	wg.Wait()
	for range 50 {
		if err := get(); err != nil {
			t.Fatalf("after the agent is back: %v", err)
		}
	}
}

func TestHealthAndMetricsAnswer(t *testing.T) {
	w := newWhole(t)
	for url, want := range map[string]string{
		w.server.HealthURL("/readyz"):  "ok",
		w.server.HealthURL("/metrics"): `konnectivity_network_proxy_server_ready_backend_connections 1`,
		w.agent.HealthURL("/readyz"):   "ok",
		w.agent.HealthURL("/metrics"):  `konnectivity_network_proxy_agent_open_server_connections 1`,
	} {
		eventually(t, patience, fmt.Sprintf("%s has %q", url, want), func() (bool, any) {
			got, err := curl(t, url)
			return err == nil && bytes.Contains(got, []byte(want)), fmt.Sprintf("%v, %.2000s", err, got)
		})
	}
}
