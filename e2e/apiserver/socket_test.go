package apiserver

import (
	"strconv"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// besideAPI is a kube-apiserver whose sidecar serves it a unix socket.
const besideAPI = "sidecars/examples/kube-apiserver"

// TestSidecar has a kube-apiserver dial by a sidecar beside it, and the sidecar by any
// server of the Service.
func TestSidecar(t *testing.T) {
	w := newHostedBy(t, func(w *world) string {
		w.startSidecar()
		return replaced(t, besideAPI+"/egress-selector-configuration.yaml", "/run/konnectivity/", w.file(""))
	})
	t.Run("before", w.everything)
	t.Run("servers come and go", w.outlive)
	t.Run("after", w.everything)
	stop(t, w.sidecar)
}

// startSidecar runs it before there is a server, as pods start in any order.
func (w *world) startSidecar() {
	health := suite.Loopback(testutil.Reserved(w.t))
	w.sidecar = w.run(besideAPI, map[string]string{"/run/konnectivity/": w.file("")},
		"--konnectivity-hostname=127.0.0.1", "--konnectivity-port="+strconv.Itoa(w.service.port), "--health-address="+health,
		"--ca-cert-path="+w.suite.PKI("ca.crt"), "--tls-cert-path="+w.suite.PKI("client.crt"), "--tls-key-path="+w.suite.PKI("client.key"))
	testutil.NoError(w.t, suite.WaitReady(w.sidecar, "http://"+health+"/healthz"))
}
