package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/admin"
	"konnectivity/internal/logging"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/testutil"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// rulesForAll are one for the client that tests have, and one by address for all.
const rulesForAll = `
version: 1
mode: enforce
rules:
- {name: peer, action: allow, who: ["cn:peer"], where: ["*.example", "10.0.0.0/8"]}
- {name: net, action: deny, who: ["*"], where: ["10.9.0.0/16", "denied.example"]}
`

// withPolicy gives a server a policy file.
func withPolicy(t *testing.T, text string) (set func(*Options), follow func(text string)) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		testutil.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		testutil.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour))) // it is whole
	}
	write(text)
	live := testutil.Must(policyfile.Open(path, MetricsPrefix, prometheus.NewRegistry(), logging.Silent()))(t)
	return func(o *Options) { o.PolicyFile = live }, func(text string) { write(text); live.Reload() }
}

// By every protocol, a client reaches what the file allows it and no more; what depends on
// the address of a name is refused where the agent does not take rules, and new rules
// hold at once.
func TestPolicyFile(t *testing.T) {
	for _, agent := range agentKinds { // neither of which takes rules
		t.Run(agent, func(t *testing.T) {
			set, follow := withPolicy(t, rulesForAll)
			r := startServer(t, set)
			r.agent(agent, agentHello{id: "a"}, echoing)
			check := func(kind, address string, allowed bool) {
				t.Helper()
				c, err := r.dial(kind, address)
				if err == nil {
					c.Close()
				}
				testutil.Equal(t, err == nil, allowed, "%s to %s: %v", kind, address, err)
			}
			for _, kind := range clientKinds {
				known := !strings.HasSuffix(kind, "uds")
				check(kind, "10.1.0.1:1", known)
				check(kind, "10.9.0.1:1", false)
				check(kind, "192.0.2.1:1", false)
				check(kind, "denied.example:1", false)
				check(kind, "elsewhere.example:1", false) // its address would decide
			}
			follow(strings.Replace(rulesForAll, `"10.9.0.0/16", `, "", 1))
			for _, kind := range clientKinds {
				known := !strings.HasSuffix(kind, "uds")
				check(kind, "10.9.0.1:1", known)
				check(kind, "elsewhere.example:1", known)
			}
			follow("version: 1\nmode: enforce\nrules: []\n") // which cannot be used
			testutil.Contains(t, ask[admin.Status](r, "status").PolicyError, "rules: there is none", "the trouble that is shown")
			check("connect-tls", "10.9.0.1:1", true)
		})
	}
}

// An agent that takes rules is told those by address, also by way of another server.
func TestAgentsAreToldRules(t *testing.T) {
	set, _ := withPolicy(t, rulesForAll)
	c := startCrew(t, 2, set)
	told := make(chan string, 1)
	features := []string{link.FeatureIdentity, link.FeatureRules}
	c.servers[1].agentReaching("a", features, func(f *tunnel.Flow) { told <- f.Rules })
	c.known(t, 1)
	for _, r := range c.servers {
		for address, want := range map[string]string{"a.example:1": "-10.9.0.0/16\n", "a.test:1": "-10.9.0.0/16\n+10.0.0.0/8\n", "10.1.0.1:1": ""} {
			r.mustDial("connect-tls", address).Close()
			testutil.Equal(t, <-told, want, "for %s the agent is told", address)
		}
	}
}

// While agents are upgraded, a name whose address matters goes by one that takes rules, also
// if the server would rather use one that does not.
func TestNamesGoByAgentsThatTakeRules(t *testing.T) {
	testutil.EachOf(t, agentKinds, func(t *testing.T, old string) {
		set, _ := withPolicy(t, rulesForAll)
		r := startServer(t, set)
		r.agentWithRules()
		defer r.mustDial("connect-tls", "10.1.0.1:1").Close() // so that it is busier than the next
		r.agent(old, agentHello{id: "old"}, echoing)
		r.mustDial("connect-tls", "a.example:1").Close()
	})
}

// Where an agent is picked because it has the name, an agent with the default route is none
// instead: it may know something else by that name.
func TestNamesKeepToTheirAgents(t *testing.T) {
	testutil.EachOf(t, agentKinds, func(t *testing.T, old string) {
		set, _ := withPolicy(t, rulesForAll)
		r := startServer(t, set, func(o *Options) {
			o.Strategies = []registry.Strategy{registry.DestHost, registry.Default}
		})
		r.agentWithRules()
		r.mustDial("connect-tls", "a.example:1").Close()
		r.agent(old, agentHello{id: "old", identifiers: "host=a.example"}, echoing)
		if c, err := r.dial("connect-tls", "a.example:1"); err == nil {
			c.Close()
			t.Error("another agent was asked")
		}
	})
}

// agentWithRules connects an agent that takes rules, and dials all.
func (r *rig) agentWithRules() {
	r.t.Helper()
	r.agentReaching("new", []string{link.FeatureRules}, func(*tunnel.Flow) {})
}
