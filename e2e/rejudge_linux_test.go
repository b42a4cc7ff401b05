package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// deny makes the load's connections to a target those that the test's change denies.
func (l *load) deny(target string) {
	for _, c := range l.conns {
		c.denied = strings.HasSuffix(c.what, target)
	}
}

// Connections that have lost their links and gone on by others, or whose agent has handed
// them over, are ended as any by a change of the agent's policy file, and of the server's.
func TestPolicyReachesConnectionsThatMoved(t *testing.T) {
	t.Parallel()
	ofAgent, ofServers := policyFile(t, noDenial), policyFile(t, noDenial)
	f := newFleet(t, 2, flags{
		server: []string{"--policy-file=" + ofServers},
		agent:  []string{"--policy-file=" + ofAgent, "--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=10m"},
	})
	targets := []string{testutil.Echo(t), testutil.Echo(t), testutil.Echo(t)}
	l := newLoad(t)
	for range scaled(5, 50) {
		for _, target := range targets {
			for _, way := range f.ways() {
				l.add(t, "to "+target, way, target, false)
			}
		}
	}
	f.toClients.cut()
	for _, leg := range f.toAgents {
		leg.cut()
	}
	l.only(t, time.Now())
	before := f.agent
	f.startAgent()
	stopInOrder(t, before.Process)
	l.only(t, time.Now())

	for i, path := range []string{ofAgent, ofServers} {
		l.deny(targets[i])
		changed := time.Now()
		writePolicy(t, path, denying(targets[i]))
		t.Logf("connections were ended within %v of the change", l.only(t, changed))
		l.conns = without(l, targets[i])
	}
	l.only(t, time.Now())
}

// without are the load's connections but those to a target, which have ended.
func without(l *load, target string) (rest []*carried) {
	for _, c := range l.conns {
		if !strings.HasSuffix(c.what, target) {
			rest = append(rest, c)
		}
	}
	return rest
}

// The server that a client has met judges what it forwards to the agents of others.
func TestPolicyReachesForwardedConnections(t *testing.T) {
	t.Parallel()
	path := policyFile(t, noDenial)
	c := newCrewOf(t, newSuite(t), func(_ int, all []string) []string {
		return []string{"--peer-servers=" + strings.Join(all, ","), "--policy-file=" + path}
	})
	sidecar := must(c.StartHTTPS(c.servers[0]))(t)
	l := newLoad(t)
	for _, target := range c.targets { // of the server's own agent, and of two others
		l.add(t, "by link to "+target, viaConnect("tcp", sidecar.Address(), nil), target, false)
		l.add(t, "by gRPC to "+target, viaGRPC(c.servers[0].UDS), target, false)
	}
	l.deny(c.targets[1])
	changed := time.Now()
	writePolicy(t, path, denying("127.0.1.2"))
	t.Logf("connections were ended within %v of the change", l.only(t, changed))
}
