package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// A cluster moves from a server of its own to a shared one, and out again, by
// what its name leads to: its agents and sidecars are not touched, and what is
// open goes on.
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
