package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"konnectivity/internal/pki"
)

// serveSecrets starts a server whose tenants are Secrets.
func (h *hosting) serveSecrets(t *testing.T) {
	t.Helper()
	h.server = must(h.StartServer("--kubeconfig="+h.api.kubeconfig, "--tenants-namespace=tenants"))(t)
}

// refuses wants the name of a tenant to lead nowhere, once the server has seen
// it. How soon that is, cut says; an API that was away is asked again later.
func (h *hosting) refuses(t *testing.T, c *clusterOfMany) {
	t.Helper()
	eventually(t, patience, c.name+" is refused", func() (bool, any) {
		_, status, err := h.connect(t, c.serverName(), c.client, c.target)
		return err != nil && strings.Contains(err.Error(), "unrecognized name"), fmt.Sprint(status, " ", err)
	})
}

func TestTenantsFromSecrets(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	h := &hosting{Suite: s, api: newKubeAPI(t, s)}
	a, b := h.tenant(t, "a"), h.tenant(t, "b")
	h.serveSecrets(t)
	h.agent(t, a)
	h.agent(t, b)
	h.reaches(t, a, http.StatusOK)
	h.reaches(t, b, http.StatusOK)
	if _, status, err := h.connect(t, a.serverName(), b.client, a.target); err == nil {
		t.Errorf("the other's certificate is let in: %d", status)
	}
	heldA, heldB := h.hold(t, a), h.hold(t, b)

	// One is added, one becomes wrong, and nobody is harmed.
	c := h.tenant(t, "c")
	h.reaches(t, c, http.StatusServiceUnavailable) // it has no agent
	a.files["clients-ca.crt"] = "nothing"
	h.put(t, a)
	h.isIn(t, "stale 1", "a")
	logged(t, h.server.Process, patience, "tenants/konnectivity-tenant-a: clients-ca.crt: no PEM certificate in it")
	a.files["clients-ca.crt"] = string(a.ca.CertPEM)
	h.put(t, a)
	h.isIn(t, "serving 1", "a")

	// One is removed: it is cut, and its name leads nowhere.
	h.api.put(b.secret(), nil)
	h.cut(t, heldB, "a connection of a tenant that was removed")
	h.refuses(t, b)
	pingPong(t, heldA, "still there")

	// While the API is away nothing changes, and afterwards all that was missed.
	h.api.setDown(true)
	h.api.put(c.secret(), nil)
	logged(t, h.server.Process, patience, "cannot be listed; all tenants are served as before")
	if state := h.states(t)["c"]; !strings.HasPrefix(state, "serving") {
		t.Errorf("while the API is away c is %s", state)
	}
	h.api.setDown(false)
	h.refuses(t, c)

	// A CA is taken away.
	other := must(pki.NewCA("ca"))(t)
	a.files["agents-ca.crt"], a.files["clients-ca.crt"] = string(other.CertPEM), string(other.CertPEM)
	h.put(t, a)
	h.cut(t, heldA, "a connection whose CA was taken away")
}
