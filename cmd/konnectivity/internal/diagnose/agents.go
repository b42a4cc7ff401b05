package diagnose

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/admin"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// checkAdmin checks the agents through the admin port, or by the link if there is none.
func (c *pathChecker) checkAdmin(ctx context.Context) {
	c.group = "agents"
	if c.opts.ServerAdmin == "" {
		c.agentsFromHello()
		return
	}
	r, err := c.askAdmin(ctx)
	if err != nil {
		c.warn("admin port of the server", c.opts.ServerAdmin+": "+err.Error(), "It listens on the server's loopback; kubectl port-forward leads to it.")
		c.agentsFromHello() // needs no admin port
		return
	}
	c.agents(r)
	if c.serving.Why != "" && !c.reportedAgents { // the admin port is that of another server, or shows another tenant
		c.agentsFromHello()
	}
}

// askAdmin reads the report of the admin port.
func (c *pathChecker) askAdmin(ctx context.Context) (r status.Report, err error) {
	if c.admin == nil { // a token, and over TLS the client certificate of the sidecar
		login := status.Login{Token: c.opts.TokenFile, TLS: via.TLS{Files: c.opts.Sidecar.Files}}
		if c.admin, err = status.NewClient(login); err != nil {
			return r, err
		}
	}
	r.Address = c.opts.ServerAdmin
	err = c.admin.Report(ctx, &r, "", maxPeers)
	return r, err
}

// agentsFromHello reports whether agents serve by the answer of the server itself.
func (c *pathChecker) agentsFromHello() {
	const step = "agents of the server"
	switch {
	case !c.serving.Told:
		cause := "the server is too old to say"
		if c.opts.ServerAdmin == "" {
			cause += ", and no --server-admin was given"
		}
		c.add(Finding{Step: step, Result: Skipped, Cause: cause})
	case c.serving.Why != "":
		c.reportedAgents = true
		c.fail(step, "the server says: "+c.serving.Why, admin.Hint(tunnel.FailNoAgent))
	default:
		c.ok(step, "the server says that agents serve")
	}
}

// maxPeers bounds the number of agents that are checked.
const maxPeers = 1000

func (c *pathChecker) agents(r status.Report) {
	if r.Status.Peers[admin.RoleAgent] == 0 {
		c.noAgent(r.Status)
		return
	}
	c.strategies(r.Status)
	c.silentAgents(r)
	if lost := status.RecentlyLost(r); lost != "" {
		c.warn("agents that left", lost, admin.GoneHint)
	}
	slowest := admin.Peer{}
	for _, p := range r.Peers {
		if p.Role == admin.RoleAgent && p.RoundTrip > slowest.RoundTrip {
			slowest = p
		}
	}
	if slowest.RoundTrip > 0 {
		c.add(Finding{
			Step: "round trip from server to agents", Result: OK, Cause: "the longest is to " + slowest.ID,
			Milliseconds: milliseconds(time.Duration(slowest.RoundTrip * float64(time.Second))),
		})
	}
	c.stalls(r)
}

func (c *pathChecker) noAgent(s admin.Status) {
	const step = "agents of the server"
	if c.reportedAgents {
		return
	}
	c.reportedAgents = true
	hint := admin.Hint(tunnel.FailNoAgent)
	if last := s.LastGone; last != nil {
		if hint = admin.GoneHint; last.Ordered {
			hint = "Start it again, or find out why it was not restarted."
		}
	}
	c.fail(step, status.NoAgent(s), hint)
}

func (c *pathChecker) strategies(s admin.Status) {
	for _, strategy := range slices.Sorted(maps.Keys(s.Strategies)) {
		step := "agents for " + strategy
		if n := s.Strategies[strategy]; n > 0 {
			c.ok(step, fmt.Sprint(n))
		} else {
			c.warn(step, "none", "Give agents the --agent-identifiers that this strategy uses, or remove it from --proxy-strategies.")
		}
	}
}

// silentAgents reports agents that hang, once.
func (c *pathChecker) silentAgents(r status.Report) {
	silent := status.SilentPeers(r.Peers, admin.RoleAgent)
	if len(silent) == 0 || c.reportedAgents {
		return
	}
	c.reportedAgents = true
	c.fail("agents that answer", status.JoinSilent(silent),
		fmt.Sprintf("It or its machine is frozen, or the network in between is cut. Dials through it fail until the server drops it, after %.0f s.", link.DefaultDeadAfter.Seconds()))
}

// stalls reports readers that do not read, and whether they fill the memory.
func (c *pathChecker) stalls(r status.Report) {
	s, full := r.Status, status.FullBuffers(r.Status)
	hint := "konnectivity status " + r.Address + " lists them first, with the side that does not read."
	switch {
	case full != "":
		c.fail("memory of the server", full, "End the stalled readers, or raise --memory-budget-mib; "+hint)
	case s.Connections.Stalled > 0:
		c.warn("stalled connections", status.StalledReaders(s.Connections.Stalled), hint)
	}
}

// recheckAgents checks the agents once more after a dial without an answer: an agent that
// froze just before was not yet known to be silent.
func (c *pathChecker) recheckAgents(ctx context.Context) {
	if c.opts.ServerAdmin == "" {
		return
	}
	r, err := c.askAdmin(ctx)
	if err != nil {
		return
	}
	c.group = "agents"
	if c.silentAgents(r); r.Status.Peers[admin.RoleAgent] == 0 {
		c.noAgent(r.Status)
	}
}
