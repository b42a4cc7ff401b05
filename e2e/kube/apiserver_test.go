package kube

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/util/proxy"

	"konnectivity/internal/testutil"
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// apiserver passes requests on to the kubelet as kube-apiserver's proxy, exec
// and log endpoints do: by its upgrade-aware handler, and a transport that
// dials by the egress selector.
type apiserver struct {
	*httptest.Server
	transport *http.Transport
}

func newAPIServer(t *testing.T, dial dialFunc, k *kubelet) *apiserver {
	t.Helper()
	a := &apiserver{transport: &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	to := testutil.Must(url.Parse(k.URL))(t)
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		location := *to
		location.Path, location.RawQuery = req.URL.Path, req.URL.RawQuery
		proxy.NewUpgradeAwareHandler(&location, a.transport, false, false, responder{}).ServeHTTP(w, req)
	}))
	t.Cleanup(a.stop)
	return a
}

// stop ends everything that is idle.
func (a *apiserver) stop() {
	a.Client().CloseIdleConnections()
	a.transport.CloseIdleConnections()
	a.Close()
}

// rest lets go of what is kept for reuse only.
func (a *apiserver) rest() {
	a.Client().CloseIdleConnections()
	a.transport.CloseIdleConnections()
}

// responder reports what the proxy could not do.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}
