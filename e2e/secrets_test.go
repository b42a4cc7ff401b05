package e2e

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"

	"konnectivity/internal/pki"
)

// secretsHosting is a server whose tenants are Secrets.
type secretsHosting struct {
	hosting
	api *kubeAPI
}

func (h *secretsHosting) start(t *testing.T) {
	t.Helper()
	h.server = must(h.StartServer("--kubeconfig="+h.api.kubeconfig, "--tenants-namespace=tenants"))(t)
}

// put stores a tenant's Secret; nil deletes it.
func (h *secretsHosting) put(tenant string, files map[string]string) {
	at := place{"secrets", "tenants", "konnectivity-tenant-" + tenant}
	if files == nil {
		h.api.put(at, nil)
		return
	}
	data := make(map[string]any)
	for file, text := range files {
		data[file] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	labelled := map[string]any{"labels": map[string]any{"konnectivity-tenant": ""}}
	h.api.put(at, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": labelled, "data": data})
}

// tenant makes a cluster and its Secret.
func (h *secretsHosting) tenant(t *testing.T, name string) (*clusterOfMany, map[string]string) {
	t.Helper()
	c, files := newTenant(t, name)
	h.put(name, files)
	return c, files
}

// reaches waits until a client of c gets to its target, or what else it is told.
func (h *secretsHosting) reaches(t *testing.T, c *clusterOfMany, want int) {
	t.Helper()
	eventually(t, patience, "the tenant "+c.name, func() (bool, any) {
		conn, status, err := h.connect(t, c.serverName(), c.client, c.target)
		if conn != nil {
			_ = conn.Close()
		}
		return status == want, fmt.Sprint(status, " ", err)
	})
}

// hold opens a connection to the target of c.
func (h *secretsHosting) hold(t *testing.T, c *clusterOfMany) net.Conn {
	t.Helper()
	conn, status, err := h.connect(t, c.serverName(), c.client, c.target)
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	return conn
}

func (h *secretsHosting) isIn(t *testing.T, state, tenant string) {
	t.Helper()
	eventually(t, patience, tenant+" in the state "+state, func() (bool, any) {
		got := h.states(t)[tenant]
		return strings.HasPrefix(got, state), got
	})
}

// refuses wants the name of a tenant to lead nowhere, once the server has seen
// it. How soon that is, cut says; an API that was away is asked again later.
func (h *secretsHosting) refuses(t *testing.T, c *clusterOfMany) {
	t.Helper()
	eventually(t, patience, c.name+" is refused", func() (bool, any) {
		_, status, err := h.connect(t, c.serverName(), c.client, c.target)
		return err != nil && strings.Contains(err.Error(), "unrecognized name"), fmt.Sprint(status, " ", err)
	})
}

func TestTenantsFromSecrets(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	h := &secretsHosting{hosting{Suite: s}, newKubeAPI(t, s)}
	a, files := h.tenant(t, "a")
	b, _ := h.tenant(t, "b")
	h.start(t)
	h.agent(t, a)
	h.agent(t, b)
	h.reaches(t, a, http.StatusOK)
	h.reaches(t, b, http.StatusOK)
	if _, status, err := h.connect(t, a.serverName(), b.client, a.target); err == nil {
		t.Errorf("the other's certificate is let in: %d", status)
	}
	heldA, heldB := h.hold(t, a), h.hold(t, b)

	// One is added, one becomes wrong, and nobody is harmed.
	c, _ := h.tenant(t, "c")
	h.reaches(t, c, http.StatusServiceUnavailable) // it has no agent
	wrong := maps.Clone(files)
	wrong["clients-ca.crt"] = "nothing"
	h.put("a", wrong)
	h.isIn(t, "stale 1", "a")
	want := "tenants/konnectivity-tenant-a: clients-ca.crt: no PEM certificate in it"
	eventually(t, patience, "the log says what is wrong", func() (bool, any) {
		return strings.Contains(h.server.Output(), want), want
	})
	h.put("a", files)
	h.isIn(t, "serving 1", "a")

	// One is removed: it is cut, and its name leads nowhere.
	h.put("b", nil)
	h.cut(t, heldB, "a connection of a tenant that was removed")
	h.refuses(t, b)
	pingPong(t, heldA, "still there")

	// While the API is away nothing changes, and afterwards all that was missed.
	h.api.setDown(true)
	h.put("c", nil)
	eventually(t, patience, "the log says that the API is away", func() (bool, any) {
		return strings.Contains(h.server.Output(), "cannot be listed; all tenants are served as before"), ""
	})
	if state := h.states(t)["c"]; !strings.HasPrefix(state, "serving") {
		t.Errorf("while the API is away c is %s", state)
	}
	h.api.setDown(false)
	h.refuses(t, c)

	// A CA is taken away.
	other := must(pki.NewCA("ca"))(t)
	files["agents-ca.crt"], files["clients-ca.crt"] = string(other.CertPEM), string(other.CertPEM)
	h.put("a", files)
	h.cut(t, heldA, "a connection whose CA was taken away")
}
