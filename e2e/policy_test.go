package e2e

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// Both the server and the agent refuse destinations by policy, cloud metadata
// without being told. The client hears 403, the operator has a metric and a
// line.
func TestPolicyIsKeptByServerAndAgent(t *testing.T) {
	s := newSuite(t)
	target := newTarget(t).plain.URL
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(target, "http://"))
	srv := must(s.StartServer("--deny-destination=*.internal.example"))(t)
	a := must(s.StartAgent(srv, "--deny-destination=127.0.0.0/8:1-1024", "--deny-destination=::1/128"))(t)
	dial := viaConnect("unix", srv.UDS, nil)
	status := func(address string) int {
		t.Helper()
		err := try(t, dial, address)
		if err == nil {
			return http.StatusOK
		}
		var refusal *statusError
		if !errors.As(err, &refusal) {
			t.Errorf("%s: %v", address, err)
			return 0
		}
		return refusal.status
	}
	denials := func(by string) float64 {
		if by == "server" {
			return metric(srv.HealthURL("/metrics"), "server_policy_denials_total")
		}
		return metric(a.HealthURL("/metrics"), "agent_policy_denials_total")
	}
	for _, c := range []struct {
		name, address, by string
	}{
		{"a name that the server denies", "db.internal.example:443", "server"},
		{"the metadata address", "169.254.169.254:80", "server"},
		{"an address that the agent denies", "127.0.0.1:22", "agent"},
		{"a name that leads to it", "localhost:22", "agent"},
	} {
		before := denials(c.by)
		testutil.Equal(t, status(c.address), http.StatusForbidden, "%s, %s", c.name, c.address)
		testutil.Equal(t, denials(c.by)-before, 1, "%s: denials that the %s counts", c.name, c.by)
	}
	logged(t, srv.Process, patience, "refused by policy")
	logged(t, a.Process, patience, "denied by policy")
	testutil.Equal(t, status(net.JoinHostPort(host, port)), http.StatusOK, "what no rule denies")
}

// policyFile writes a policy file with these rules, and returns its path.
func policyFile(t *testing.T, rules string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	writePolicy(t, path, rules)
	return path
}

// noDenial are rules that deny nothing of a test's.
const noDenial = "rules:\n- {name: none, action: deny, who: ['*'], where: ['192.0.2.1']}\n"

// denying returns rules that deny a destination to all clients.
func denying(where string) string {
	return "rules:\n- {name: denied, action: deny, who: ['*'], where: ['" + where + "']}\n"
}

// writePolicy replaces a policy file as a whole, as those who change files in use should.
func writePolicy(t testing.TB, path, rules string) {
	t.Helper()
	next := path + ".next"
	testutil.NoError(t, errors.Join(os.WriteFile(next, []byte("version: 1\nmode: enforce\n"+rules), 0o600), os.Rename(next, path)))
}
