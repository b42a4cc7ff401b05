package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Both the server and the agent refuse destinations by policy, cloud metadata
// without being told. The client hears 403, the operator has a metric and a
// line.
func TestPolicyIsKeptByServerAndAgent(t *testing.T) {
	s := newSuite(t)
	target := newTarget(t).plain.URL
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(target, "http://"))
	srv := must(s.StartServer("--deny-destination=*.internal.example", "--deny-destination=192.0.2.0/24"))(t)
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
		{"in other letters, with a dot", "DB.Internal.Example.:443", "server"},
		{"a network that the server denies", "192.0.2.7:443", "server"},
		{"the metadata address", "169.254.169.254:80", "server"},
		{"the same in IPv6 clothes", "[::ffff:169.254.169.254]:80", "server"},
		{"the metadata address of IPv6", "[fd00:ec2::254]:80", "server"},
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

// writePolicy replaces a policy file as a whole, as those who change files in use should.
func writePolicy(t testing.TB, path, rules string) {
	t.Helper()
	next := path + ".next"
	testutil.NoError(t, errors.Join(os.WriteFile(next, []byte("version: 1\nmode: enforce\n"+rules), 0o600), os.Rename(next, path)))
}

// Two clients and four destinations, by every front: each client reaches what the server's
// file allows it, by address and by name, which the agent judges. Then the file is changed,
// there and back, while both dial.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	var ports [2]string
	for i := range ports {
		_, ports[i], _ = net.SplitHostPort(strings.TrimPrefix(newTarget(t).plain.URL, "http://"))
	}
	rules := func(bySocket, byCertificate string) string {
		return fmt.Sprintf("rules:\n"+
			"- {name: local, action: allow, who: ['socket:%s/*'], where: ['127.0.0.0/8:%s']}\n"+
			"- {name: none, action: deny, who: ['*'], where: ['127.0.0.99']}\n"+
			"- {name: sidecars, action: allow, who: ['uri:spiffe://*/konnectivity/client'], where: ['127.0.0.0/8:%s']}\n", s.Dir, bySocket, byCertificate)
	}
	path := policyFile(t, rules(ports[0], ports[1]))
	srv := must(s.StartServer("--policy-file=" + path))(t)
	must(s.StartAgent(srv))(t)
	socks, https := must(s.StartSOCKS5(srv))(t), must(s.StartHTTPS(srv))(t)
	type front struct {
		name string
		tunnel.Dialer
		socket bool
	}
	fronts := []front{
		{"CONNECT", viaConnect("unix", srv.UDS, nil), true}, {"gRPC", viaGRPC(srv.UDS), true},
		{"SOCKS5", viaSOCKS5(socks.Address()), false}, {"HTTP", viaConnect("tcp", https.Address(), nil), false},
	}
	// reached says which destinations a front reaches.
	reached := func(f front) (all string) {
		for _, host := range []string{"127.0.0.1", "localhost"} {
			for i, port := range ports {
				if try(t, f, net.JoinHostPort(host, port)) == nil {
					all += fmt.Sprint(host, " ", i, "; ")
				}
			}
		}
		return all
	}
	want := func(of int) string { return fmt.Sprintf("127.0.0.1 %d; localhost %d; ", of, of) }
	for round, swapped := range []bool{false, true, false} {
		by := [2]int{1, 0} // by certificate, by socket
		if swapped {
			by = [2]int{0, 1}
		}
		if round > 0 {
			writePolicy(t, path, rules(ports[by[1]], ports[by[0]]))
		}
		for _, f := range fronts {
			of := by[0]
			if f.socket {
				of = by[1]
			}
			eventually(t, patience, fmt.Sprintf("round %d, %s reaches %q", round, f.name, want(of)), func() (bool, any) {
				got := reached(f)
				return got == want(of), got
			})
		}
	}
	testutil.AtLeast(t, metric(srv.HealthURL("/metrics"), "server_policy_denials_total"), 1, "denials")
	logged(t, srv.Process, patience, "refused by policy")

	// A file that cannot be used changes nothing, and is shown.
	writePolicy(t, path, "rules: []\n")
	reaches(t, patience, srv.HealthURL("/metrics"), "server_policy_file_broken", 1)
	logged(t, srv.Process, patience, "policy file cannot be used")
	if shown, _ := page("http://" + suite.Loopback(srv.AdminPort) + "/api/v1/status"); !strings.Contains(shown, `"policyError":"rules: there is none`) {
		t.Errorf("the status does not say why: %s", shown)
	}
	testutil.Equal(t, reached(fronts[0]), want(0), "what is reached with a file that cannot be used")
}
