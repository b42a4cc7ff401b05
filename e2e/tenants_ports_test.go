package e2e

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"

	"konnectivity/internal/testutil"
)

// A cluster can be given ports and a socket of its own while the server runs, and its
// agent and its clients come by these, without a name; nobody else does.
func TestAClusterHasPortsOfItsOwn(t *testing.T) {
	t.Parallel()
	h := &hosting{Suite: newSuite(t), dir: t.TempDir()}
	a, b := h.tenant(t, "a"), h.tenant(t, "b")
	h.server = must(h.StartServer("--tenants-dir=" + h.dir))(t)
	agents, clients, socket := testutil.Reserved(t), testutil.Reserved(t), filepath.Join(h.Dir, "a.sock")
	spec := filepath.Join(h.dir, "a", "tenant.yaml")
	replace(t, spec, fmt.Appendf(nil, "serverNames: [a.example]\nlisten: {agentPort: %d, clientPort: %d, clientSocket: %s}\n", agents, clients, socket))
	eventually(t, patience, "the cluster's socket", func() (bool, any) {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil, err
	})
	h.agent(t, a, "--proxy-server-port="+strconv.Itoa(agents))
	h.agent(t, b)
	eventually(t, patience, "the cluster's port", func() (bool, any) {
		_, status, err := connectAt(t, clients, "", a.client, a.target)
		return status == http.StatusOK, err
	})
	plain := must(net.Dial("unix", socket))(t)
	held, status, err := connectOver(t, plain, a.target)
	if err != nil || status != http.StatusOK {
		t.Fatalf("by the socket: %d, %v", status, err)
	}
	pingPong(t, held, "by the socket")
	for _, name := range []string{"", a.serverName(), b.serverName()} {
		if _, status, err := connectAt(t, clients, name, b.client, b.target); err == nil {
			t.Errorf("the other's client is let in by the cluster's port under %q: %d", name, status)
		}
	}
	replace(t, spec, []byte("serverNames: [a.example]\n"))
	h.cut(t, held, "a connection by a socket that was taken away")
	for _, place := range [][2]string{{"unix", socket}, {"tcp", fmt.Sprint("127.0.0.1:", clients)}} {
		eventually(t, patience, place[1]+" is closed", func() (bool, any) {
			c, err := net.Dial(place[0], place[1])
			if err == nil {
				_ = c.Close()
			}
			return err != nil, "it is open"
		})
	}
}
