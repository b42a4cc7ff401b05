package e2e

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
)

// secretsAPI is the part of a Kubernetes API that has tenants' Secrets, over
// TLS and for one token, with versions and watches that go on from any of them.
type secretsAPI struct {
	kubeconfig string

	mu      sync.Mutex
	down    bool // hang up on everybody
	held    map[string]secretObject
	history []secretEvent // the version is how many there were
	news    chan struct{} // closed when something changes
}

type secretObject struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	Data       map[string][]byte `json:"data"`
}

type secretEvent struct {
	Type   string       `json:"type"`
	Object secretObject `json:"object"`
}

const secretsToken = "may-read-secrets"

func newSecretsAPI(t *testing.T, s *suite.Suite) *secretsAPI {
	t.Helper()
	k := &secretsAPI{held: make(map[string]secretObject), news: make(chan struct{})}
	server := httptest.NewTLSServer(k)
	t.Cleanup(func() {
		k.setDown(true) // which ends watches
		server.Close()
	})
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: %s}}]\n", server.URL, ca, secretsToken)
	k.kubeconfig = filepath.Join(s.Dir, "kubeconfig")
	if err := os.WriteFile(k.kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *secretsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	query := r.URL.Query()
	switch {
	case k.down:
		panic(http.ErrAbortHandler)
	case r.Header.Get("Authorization") != "Bearer "+secretsToken, r.Method != http.MethodGet, r.URL.Path != "/api/v1/namespaces/tenants/secrets", query.Get("labelSelector") != "konnectivity-tenant":
		refuseCall(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case query.Get("watch") != "":
		k.watch(w, r)
	default:
		items := make([]secretObject, 0, len(k.held))
		for _, s := range k.held {
			items = append(items, s)
		}
		respond(w, http.StatusOK, map[string]any{
			"apiVersion": "v1", "kind": "SecretList", "metadata": map[string]string{"resourceVersion": strconv.Itoa(len(k.history))}, "items": items,
		})
	}
}

// watch sends what has happened since a version. k.mu is held but while it
// waits.
func (k *secretsAPI) watch(w http.ResponseWriter, r *http.Request) {
	next, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || next > len(k.history) {
		refuseCall(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for !k.down && r.Context().Err() == nil {
		for ; next < len(k.history); next++ {
			_ = json.NewEncoder(w).Encode(k.history[next])
		}
		news := k.news
		k.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-news:
		case <-r.Context().Done():
		}
		k.mu.Lock()
	}
	panic(http.ErrAbortHandler)
}

// changed wakes the watches. k.mu is held.
func (k *secretsAPI) changed() {
	close(k.news)
	k.news = make(chan struct{})
}

func (k *secretsAPI) setDown(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
	k.changed()
}

// put stores a tenant's Secret; nil deletes it.
func (k *secretsAPI) put(tenant string, files map[string]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := "konnectivity-tenant-" + tenant
	was, there := k.held[name]
	e := secretEvent{"ADDED", secretObject{APIVersion: "v1", Kind: "Secret", Data: make(map[string][]byte)}}
	for file, text := range files {
		e.Object.Data[file] = []byte(text)
	}
	switch {
	case files == nil:
		e = secretEvent{"DELETED", was}
	case there:
		e.Type = "MODIFIED"
	}
	e.Object.Metadata = metav1.ObjectMeta{Name: name, Namespace: "tenants", ResourceVersion: strconv.Itoa(len(k.history) + 1)}
	if k.held[name] = e.Object; files == nil {
		delete(k.held, name)
	}
	k.history = append(k.history, e)
	k.changed()
}

// secretsHosting is a server whose tenants are Secrets.
type secretsHosting struct {
	hosting
	api *secretsAPI
}

func (h *secretsHosting) start(t *testing.T) {
	t.Helper()
	h.server = must(h.StartServer("--kubeconfig="+h.api.kubeconfig, "--tenants-namespace=tenants"))(t)
}

// tenant makes a cluster and its Secret.
func (h *secretsHosting) tenant(t *testing.T, name string) (*clusterOfMany, map[string]string) {
	t.Helper()
	c, files := newTenant(t, name)
	h.api.put(name, files)
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
	h := &secretsHosting{hosting{Suite: s}, newSecretsAPI(t, s)}
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
	h.api.put("a", wrong)
	h.isIn(t, "stale 1", "a")
	want := "tenants/konnectivity-tenant-a: clients-ca.crt: no PEM certificate in it"
	eventually(t, patience, "the log says what is wrong", func() (bool, any) {
		return strings.Contains(h.server.Output(), want), want
	})
	h.api.put("a", files)
	h.isIn(t, "serving 1", "a")

	// One is removed: it is cut, and its name leads nowhere.
	h.api.put("b", nil)
	h.cut(t, heldB, "a connection of a tenant that was removed")
	h.refuses(t, b)
	pingPong(t, heldA, "still there")

	// While the API is away nothing changes, and afterwards all that was missed.
	h.api.setDown(true)
	h.api.put("c", nil)
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
	h.api.put("a", files)
	h.cut(t, heldA, "a connection whose CA was taken away")
}
