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
	h.roots.AppendCertsFromPEM(ca.CertPEM)
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
