package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// tenantBound is the promise: what is taken away is cut that soon.
const tenantBound = 10 * time.Second

// hosting is a server of many clusters. Each has a folder in dir, or a Secret of api.
type hosting struct {
	*suite.Suite
	server *suite.Server
	dir    string
	api    *kubeAPI // nil: folders
}

// clusterOfMany is one of them, with the same names as all others.
type clusterOfMany struct {
	name, target string
	ca           *pki.CA
	client       tls.Certificate
	files        map[string]string // that a server is given
}

// serverName is what its peers ask for.
func (c *clusterOfMany) serverName() string { return c.name + ".example" }

// newTenant makes a cluster.
func newTenant(t *testing.T, name, target string) *clusterOfMany {
	t.Helper()
	c := &clusterOfMany{name: name, ca: must(pki.NewCA("ca"))(t), target: target}
	c.client = must(c.ca.Issue(pki.Leaf{CommonName: "client", Client: true}))(t).TLS()
	shown := must(c.ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{c.serverName()}, Server: true}))(t)
	c.files = map[string]string{
		"agents-ca.crt": string(c.ca.CertPEM), "clients-ca.crt": string(c.ca.CertPEM),
		"server.crt": string(shown.CertPEM), "server.key": string(shown.KeyPEM), "tenant.yaml": "serverNames: [" + c.serverName() + "]\n",
	}
	return c
}

// tenant makes a cluster and puts what the server is given of it in place.
func (h *hosting) tenant(t *testing.T, name string) *clusterOfMany {
	t.Helper()
	c := newTenant(t, name, testutil.Echo(t))
	h.put(t, c)
	return c
}

// put makes a cluster's folder or Secret, or updates the one that is there.
func (h *hosting) put(t *testing.T, c *clusterOfMany) {
	t.Helper()
	if h.api == nil {
		c.putFolder(t, h.dir)
		return
	}
	data := make(map[string]any)
	for file, text := range c.files {
		data[file] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	labelled := map[string]any{"labels": map[string]any{"konnectivity-tenant": ""}}
	h.api.put(c.secret(), map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": labelled, "data": data})
}

// putFolder makes a cluster's folder in dir at once, or replaces the files in it that differ.
func (c *clusterOfMany) putFolder(t *testing.T, dir string) {
	t.Helper()
	folder := filepath.Join(dir, c.name)
	made := folder
	_, missing := os.Stat(folder)
	if missing != nil {
		made = filepath.Join(t.TempDir(), c.name)
		testutil.NoError(t, os.Mkdir(made, 0o700))
	}
	for file, text := range c.files {
		path := filepath.Join(made, file)
		if old, err := os.ReadFile(path); err != nil || string(old) != text { // that one file changes must be enough
			replace(t, path, []byte(text))
		}
	}
	if missing != nil {
		testutil.NoError(t, os.Rename(made, folder))
	}
}

// secret is where its Secret is.
func (c *clusterOfMany) secret() place {
	return place{"secrets", "tenants", "konnectivity-tenant-" + c.name}
}

// agent starts the cluster's agent, which reaches the cluster's target alone.
func (h *hosting) agent(t *testing.T, c *clusterOfMany, more ...string) *suite.Agent {
	t.Helper()
	return h.agentFor(t, c, append(more, "--agent-id=one", "--agent-identifiers=ipv4=127.0.0.1", "--allow-destination="+c.target)...)
}

// agentFor starts an agent with a certificate of the cluster.
func (h *hosting) agentFor(t *testing.T, c *clusterOfMany, more ...string) *suite.Agent {
	t.Helper()
	file := func(part string) string { return h.PKI(c.name + "-" + part) }
	replace(t, file("ca.crt"), c.ca.CertPEM)
	issuer := authority{CA: c.ca}
	issuer.write(t, pki.Leaf{CommonName: "agent", Client: true}, file("agent.crt"), file("agent.key"))
	return must(h.StartAgent(h.server, append(more, "--server-name="+c.serverName(), "--ca-cert="+file("ca.crt"), "--agent-cert="+file("agent.crt"), "--agent-key="+file("agent.key"))...))(t)
}

// connect asks for a target by CONNECT, under a server name and with a
// certificate; an error: there was no answer.
func (h *hosting) connect(t *testing.T, serverName string, cert tls.Certificate, target string) (net.Conn, int, error) {
	t.Helper()
	c, err := viaConnect("tcp", suite.Loopback(h.server.ClientPort), &tls.Config{
		ServerName: serverName, InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"},
	}).Dial(within(t, patience), tunnel.NewFlow("tcp", target))
	if answer := (*statusError)(nil); errors.As(err, &answer) {
		return nil, answer.status, nil
	}
	if err != nil {
		return nil, 0, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, http.StatusOK, nil
}

// reaches waits until a client of c gets this status: 200 once it reaches its target.
func (h *hosting) reaches(t *testing.T, c *clusterOfMany, want int) {
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
func (h *hosting) hold(t *testing.T, c *clusterOfMany) net.Conn {
	t.Helper()
	conn, status, err := h.connect(t, c.serverName(), c.client, c.target)
	testutil.Requires(t, err == nil && status == http.StatusOK, "%v %v", status, err)
	return conn
}

// isIn waits until a tenant is in a state, with so many agents.
func (h *hosting) isIn(t *testing.T, state, tenant string) {
	t.Helper()
	eventually(t, patience, tenant+" in the state "+state, func() (bool, any) {
		got := h.states(t)[tenant]
		return got == state, got
	})
}

// Tenants are added, changed and removed while a server runs, as folders and as Secrets. Each
// reaches its own destinations alone, and no change interrupts another.
func TestClustersOfOneServerNeverMeet(t *testing.T) {
	t.Parallel()
	t.Run("folders", func(t *testing.T) {
		t.Parallel()
		h := &hosting{Suite: newSuite(t), dir: t.TempDir()}
		h.neverMeet(t, func(c *clusterOfMany) {
			testutil.NoError(t, os.Rename(filepath.Join(h.dir, c.name), filepath.Join(t.TempDir(), c.name)))
		}, "--tenants-dir="+h.dir)
	})
	t.Run("Secrets", func(t *testing.T) {
		t.Parallel()
		s := newSuite(t)
		h := &hosting{Suite: s, api: newKubeAPI(t, s)}
		c := h.neverMeet(t, func(c *clusterOfMany) { h.api.put(c.secret(), nil) }, "--kubeconfig="+h.api.kubeconfig, "--tenants-namespace=tenants")
		// While the API is away nothing changes, and afterwards all that was missed.
		before := fmt.Sprint(h.states(t))
		h.api.setDown(true)
		h.api.put(c.secret(), nil)
		logged(t, h.server.Process, patience, "cannot be listed; all tenants are served as before")
		testutil.Equal(t, fmt.Sprint(h.states(t)), before, "while the API is away, there are")
		h.api.setDown(false)
		h.refuses(t, c)
	})
}

// neverMeet adds, changes and removes clusters, and returns one that is there at the end.
func (h *hosting) neverMeet(t *testing.T, remove func(*clusterOfMany), flags ...string) *clusterOfMany {
	t.Helper()
	a, b := h.tenant(t, "a"), h.tenant(t, "b")
	h.server = must(h.StartServer(flags...))(t)
	h.agent(t, a)
	agentB := h.agent(t, b)
	h.reaches(t, a, http.StatusOK)
	h.reaches(t, b, http.StatusOK)
	// The same addresses, ids and names on both sides, and each has its own: the other's target
	// is refused by the agent, which was asked.
	for c, other := range map[*clusterOfMany]*clusterOfMany{a: b, b: a} {
		_, status, err := h.connect(t, c.serverName(), c.client, other.target)
		testutil.Holds(t, status == http.StatusForbidden, "client of %s to the target of %s: %d, %v", c.name, other.name, status, err)
	}
	// Nobody gets in under a name that is not theirs.
	own := must(tls.LoadX509KeyPair(h.PKI("client.crt"), h.PKI("client.key")))(t)
	for _, try := range []struct {
		what, name string
		cert       tls.Certificate
	}{
		{"the other's certificate", "a.example", b.client}, {"the flags' certificate", "a.example", own},
		{"no name", "", a.client}, {"nobody's name", "c.example", a.client}, {"a name below", "x.a.example", a.client},
	} {
		_, status, err := h.connect(t, try.name, try.cert, a.target)
		testutil.Holds(t, err != nil, "%s is let in: %d", try.what, status)
	}
	if _, status, err := h.connect(t, "", own, a.target); status != http.StatusServiceUnavailable {
		t.Errorf("the flags' own cluster, which has no agent: %d, %v", status, err)
	}
	// One is added, and what others have stays.
	heldA, heldB := h.hold(t, a), h.hold(t, b)
	c := h.tenant(t, "c")
	h.reaches(t, c, http.StatusServiceUnavailable) // it has no agent
	testutil.Equal(t, fmt.Sprint(h.states(t)), "map[a:serving 1 b:serving 1 c:serving 0]", "the API has")
	// One is broken and harms nobody, itself included.
	c.files["tenant.yaml"] += "bound: 1\n"
	h.put(t, c)
	h.isIn(t, "stale 0", "c")
	// One is removed: it is cut, and its name leads nowhere.
	remove(b)
	h.cut(t, heldB, "a connection of a tenant that was removed")
	h.refuses(t, b)
	logged(t, agentB.Process, patience, "unrecognized name; the server does not know the name it was asked for: check --server-name")
	pingPong(t, heldA, "still there")
	// A CA is taken away.
	other := must(pki.NewCA("ca"))(t)
	a.files["agents-ca.crt"], a.files["clients-ca.crt"] = string(other.CertPEM), string(other.CertPEM)
	h.put(t, a)
	h.cut(t, heldA, "a connection whose CA was taken away")
	h.isIn(t, "serving 0", "a") // the agent is gone
	return c
}

// refuses waits until the name of a tenant leads nowhere, with the tenant's certificate or that
// of the flags. How soon that is, cut checks; an API that was away is asked again later.
func (h *hosting) refuses(t *testing.T, c *clusterOfMany) {
	t.Helper()
	own := must(tls.LoadX509KeyPair(h.PKI("client.crt"), h.PKI("client.key")))(t)
	for _, cert := range []tls.Certificate{c.client, own} {
		eventually(t, patience, c.name+" is refused", func() (bool, any) {
			_, status, err := h.connect(t, c.serverName(), cert, c.target)
			return err != nil && strings.Contains(err.Error(), "unrecognized name"), fmt.Sprint(status, " ", err)
		})
	}
}

// cut wants c to be cut within the bound.
func (h *hosting) cut(t *testing.T, c net.Conn, what string) {
	t.Helper()
	took := stopwatch(h.Suite)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) || took() > tenantBound {
		t.Errorf("%s: %v after %v", what, err, took())
	}
}

// states is what the API says of each tenant: its state and number of agents.
func (h *hosting) states(t *testing.T) map[string]string {
	t.Helper()
	resp := must(http.Get("http://" + suite.Loopback(h.server.AdminPort) + "/api/v1/tenants"))(t)
	defer resp.Body.Close()
	var page struct {
		Items []struct {
			Name, State string
			Agents      int
		}
	}
	text := must(io.ReadAll(resp.Body))(t)
	err := json.Unmarshal(text, &page)
	testutil.Requires(t, err == nil, "%v: %s", err, text)
	out := make(map[string]string)
	for _, item := range page.Items {
		out[item.Name] = fmt.Sprint(item.State, " ", item.Agents)
	}
	return out
}

// A cluster moves from a server of its own to a shared one, and back, as its
// name leads to another address. Its agents and sidecars are not touched, and open connections
// go on.
func TestAClusterMovesInAndOutWithoutACut(t *testing.T) {
	t.Parallel()
	h := &hosting{Suite: newSuite(t), dir: t.TempDir()}
	own := must(h.StartServer())(t)
	toAgents, toClients := newBalancer(t, agentSide(own)...), newBalancer(t, clientSide(own)...)
	const name = "localhost" // which the server's certificate has
	agent := must(h.StartAgent(toAgents.front(), "--server-name="+name, "--sync-interval-cap=2s"))(t)
	connected(t, agent, 1, patience)
	socks := must(h.StartSOCKS5(toClients.front(), "--server-name="+name))(t)
	held := dialed(t, viaSOCKS5(socks.Address()), testutil.Echo(t))
	pingPong(t, held, "by its own server")

	folder := filepath.Join(h.dir, "moved")
	testutil.NoError(t, os.Mkdir(folder, 0o700))
	ca := must(os.ReadFile(h.PKI("ca.crt")))(t)
	for file, text := range map[string][]byte{"agents-ca.crt": ca, "clients-ca.crt": ca, "tenant.yaml": []byte("serverNames: [" + name + "]\n")} {
		replace(t, filepath.Join(folder, file), text)
	}
	h.server = must(h.StartServer("--tenants-dir=" + h.dir))(t)
	move := func(from, to *suite.Server) {
		t.Helper()
		toAgents.set(agentSide(to)...)
		toClients.set(clientSide(to)...)
		stopInOrder(t, from.Process)
	}
	move(own, h.server)
	pingPong(t, held, "by the shared server")
	eventually(t, patience, "the agent is the shared server's", func() (bool, any) {
		states := h.states(t)
		return states["moved"] == "serving 1", states
	})

	testutil.NoError(t, h.RunServer(own))
	move(h.server, own)
	pingPong(t, held, "by its own server again")
}
