package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

const (
	// webhookTime is how long a webhook thinks, so that there are requests
	// under way whenever something is replaced.
	webhookTime = 50 * time.Millisecond

	// webhookPatience is the longest timeout that kube-apiserver lets a webhook
	// have. (By default it is 10 s, in which a busy machine may fail by itself.)
	webhookPatience = 30 * time.Second

	// webhooksAtOnce bounds how many of one client are under way. When it is
	// reached, as on a machine that cannot do more, none is begun.
	webhooksAtOnce = 30
)

// webhooks are a web server behind the agents and clients that call it without
// pause, each request on a connection of its own.
type webhooks struct {
	url   string
	roots *x509.CertPool // of the server, and of the suite's proxies

	sent atomic.Int64
	mu   sync.Mutex
	errs []error
}

func newWebhooks(t *testing.T, s *suite.Suite) *webhooks {
	t.Helper()
	ca := must(pki.NewCA("webhook CA"))(t)
	pair := must(ca.Issue(pki.Leaf{CommonName: "webhook", DNS: []string{"localhost"}, Server: true}))(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		time.Sleep(webhookTime)
		_, _ = w.Write(body)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	h := &webhooks{url: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), roots: x509.NewCertPool()}
	h.roots.AddCert(ca.Certificate())
	h.roots.AppendCertsFromPEM(must(os.ReadFile(s.PKI("ca.crt")))(t))
	return h
}

// client calls by a proxy. With a certificate it may be a konnectivity server.
func (h *webhooks) client(proxy *url.URL, certs ...tls.Certificate) *http.Client {
	return &http.Client{Timeout: webhookPatience, Transport: &http.Transport{
		Proxy: http.ProxyURL(proxy), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: h.roots, Certificates: certs},
	}}
}

// call is one request: a review that must come back as it went.
func (h *webhooks) call(c *http.Client, n int64) error {
	review := fmt.Sprintf(`{"kind":"AdmissionReview","request":{"uid":"%d","object":%q}}`, n, strings.Repeat("x", 2000))
	res, err := c.Post(h.url, "application/json", strings.NewReader(review))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK || string(got) != review:
		return fmt.Errorf("%s with %d bytes instead of %d", res.Status, len(got), len(review))
	}
	return nil
}

// load calls at most rate times a second, by each client in turn, until stop is called,
// which waits for the last answers and returns how many were sent and what
// failed.
func (h *webhooks) load(rate int, clients map[string]*http.Client) (stop func() (int64, []error)) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	began := time.Now()
	for name, c := range clients {
		work.Go(func() {
			free := make(chan struct{}, webhooksAtOnce)
			tick := time.NewTicker(time.Second * time.Duration(len(clients)) / time.Duration(rate))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				select {
				case free <- struct{}{}:
				default:
					continue
				}
				n := h.sent.Add(1)
				work.Go(func() {
					defer func() { <-free }()
					at := time.Since(began)
					if err := h.call(c, n); err != nil {
						h.mu.Lock()
						defer h.mu.Unlock()
						h.errs = append(h.errs, fmt.Errorf("%s, %.2f s in, after %.2f s: %w", name, at.Seconds(), (time.Since(began)-at).Seconds(), err))
					}
				})
			}
		})
	}
	return func() (int64, []error) {
		cancel()
		work.Wait()
		return h.sent.Load(), h.errs
	}
}

// Every server and every agent is replaced, one after the other, while webhooks
// are called 100 times a second by every kind of client. Nothing fails.
func TestRollingEverythingFailsNothing(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]string{"links": "auto", "gRPC and CONNECT": "off"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rollEverything(t, mode)
		})
	}
}

func rollEverything(t *testing.T, mode string) {
	link := "--link=" + mode
	s := newSuite(t)
	hooks := newWebhooks(t, s)
	a := must(s.StartServer("--server-count=2"))(t)
	b := must(s.StartServer("--server-count=2"))(t)
	toClients := newBalancer(t, clientSide(a, b)...)
	toAgents := newBalancer(t, agentSide(a, b)...)

	// One agent knows a balancer, the other both servers.
	first := []string{link, "--agent-id=agent-1"}
	second := []string{link, "--agent-id=agent-2", "--proxy-server-host=" + suite.Loopback(b.AgentPort)}
	agents := []*suite.Agent{must(s.StartAgent(toAgents.front(), first...))(t), must(s.StartAgent(a, second...))(t)}
	for _, agent := range agents {
		connected(t, agent, 2, patience)
	}
	socks := must(s.StartSOCKS5(toClients.front(), link))(t)
	https := must(s.StartHTTPS(toClients.front(), link))(t)
	cert := must(tls.LoadX509KeyPair(s.PKI("client.crt"), s.PKI("client.key")))(t)
	stop := hooks.load(100, map[string]*http.Client{
		"SOCKS5":  hooks.client(&url.URL{Scheme: "socks5h", Host: socks.Address()}),
		"HTTPS":   hooks.client(&url.URL{Scheme: "http", Host: https.Address()}),
		"CONNECT": hooks.client(&url.URL{Scheme: "https", Host: suite.Loopback(toClients.port)}, cert),
	})
	for round := range scaled(1, 10) {
		for _, srv := range []*suite.Server{a, b} {
			time.Sleep(time.Second)
			began := time.Now()
			stopInOrder(t, srv.Process)
			took := time.Since(began)
			toClients.restarted(srv.ClientPort)
			testutil.NoError(t, s.RunServer(srv, "--server-count=2"))
			for _, agent := range agents {
				connected(t, agent, 2, patience)
			}
			t.Logf("round %d: a server left in %v, all were back after %v", round, took, time.Since(began))
		}
		for i, srv := range []*suite.Server{toAgents.front(), a} {
			time.Sleep(time.Second)
			began := time.Now()
			stopInOrder(t, agents[i].Process)
			took := time.Since(began)
			agents[i] = must(s.StartAgent(srv, [][]string{first, second}[i]...))(t)
			connected(t, agents[i], 2, patience)
			t.Logf("round %d: an agent left in %v, the next was at both after %v", round, took, time.Since(began))
		}
	}
	time.Sleep(time.Second)
	sent, errs := stop()
	t.Logf("%d requests, %d failed", sent, len(errs))
	for i, err := range errs {
		if i < 20 {
			t.Error(err)
		}
	}
	testutil.AtLeast(t, sent, 100, "requests") // 700 on an idle machine
}

// stopInOrder asks a process to end, as Kubernetes does, and wants exit status 0.
func stopInOrder(t *testing.T, p *suite.Process) {
	t.Helper()
	if code, err := p.Stop(); err != nil || code != 0 {
		t.Errorf("%s after SIGTERM: exit status %d, %v\n%s", p.Name, code, err, p.Output())
	}
}
