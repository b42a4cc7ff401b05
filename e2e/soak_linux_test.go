package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

var (
	soakFor     = flag.Duration("soak", 0, "how long TestSoak does harm")
	soakSeed    = flag.Uint64("seed", 0, "what its faults follow from; 0: random, and printed")
	soakPicture = flag.String("picture", "", "file for the picture of what its processes held")
)

// fault is something that is done to a town; it returns once that is over.
type fault struct {
	name  string
	do    func(w *town)
	early bool // only while the town warms up: it ends the processes that are to last
}

// faults are one table: those of links for each kind of link, of tenants for each change, and
// the others.
func faults() (all []fault) {
	for _, leg := range []struct {
		name string
		any  func(w *town) *balancer
	}{
		{"the sidecars' links", func(w *town) *balancer { return w.toClients }},
		{"the agents' links to a server", func(w *town) *balancer { return w.toAgents[w.r.IntN(len(w.toAgents))] }},
		{"a link beside the API server", func(w *town) *balancer { return w.toBeside[w.r.IntN(len(w.toBeside))] }},
	} {
		all = append(all,
			fault{name: "cut " + leg.name, do: func(w *town) { leg.any(w).cut() }},
			fault{name: "half-cut " + leg.name, do: func(w *town) { leg.any(w).sever(w.r.IntN(2) == 0) }},
			fault{name: "stop " + leg.name + " for a moment", do: func(w *town) { standStill(leg.any(w), w.r, 2*time.Second) }},
			fault{name: "stop " + leg.name, do: func(w *town) { standStill(leg.any(w), w.r, longStop) }},
			fault{name: "garbage in " + leg.name, do: func(w *town) { leg.any(w).garble(w.r.IntN(2) == 0, []byte("garbage\x00\xff")) }},
		)
	}
	for _, k := range tenantChanges {
		all = append(all, fault{name: k.name, do: func(w *town) { w.changeTenant(k) }})
	}
	return append(all, []fault{
		{name: "kill a server", do: func(w *town) { w.end((*suite.Process).Kill, w.anyServer()) }},
		{name: "kill all servers", early: true, do: func(w *town) { w.end((*suite.Process).Kill, w.servers...) }},
		{name: "replace a server", do: func(w *town) { w.end(func(p *suite.Process) { stopInOrder(w.t, p) }, w.anyServer()) }},
		{name: "freeze a server", do: func(w *town) { w.freeze(w.servers[w.r.IntN(len(w.servers))].Process, longStop) }},
		{name: "take the agents from a server", do: (*town).dialByPeers},
		{name: "hand over to another agent", do: func(w *town) {
			w.handOver("agent", &w.agent, func() *suite.Agent { w.startAgent(); return w.agent })
		}},
		{name: "hand over beside the API server", do: func(w *town) { w.handOver("agent beside", &w.beside, w.newBeside) }},
		{name: "freeze an agent", do: func(w *town) { w.freeze(w.agent.Process, longStop) }},
		{name: "kill an agent", do: func(w *town) {
			w.strike(w.mortalEcho, true, func() {
				w.mortal.Kill()
				w.mortal = w.newMortal()
			}, w.fronts()...)
		}},
		{name: "kill an agent that hands over", do: (*town).cutHandoverShort},
		{name: "renew all certificates", do: (*town).renewCertificates},
		{name: "revoke a client", do: (*town).revokeClient},
		{name: "change the servers' policy", do: func(w *town) { w.deny(w.serverPolicy) }},
		{name: "change the agent's policy", do: func(w *town) { w.deny(w.agentPolicy) }},
		{name: "replace a token", do: (*town).replaceToken},
		{name: "rotate the audit logs", do: (*town).rotateAudit},
	}...)
}

const (
	// longStop is how long something may stand still. Links are given up after 20 s of silence.
	longStop = 25 * time.Second

	// longBurst is for how long a burst goes on. Links may stand still for longStop at its
	// end, and half of one that is half-cut does for 20 s: two of these would outlast the
	// window.
	longBurst = 2 * time.Second
)

// Faults in an order that a seed gives come in bursts, while transfers run. No byte of these is
// lost or altered: what a fault ends by intent are connections of its own, which are counted. At
// the end the processes hold no more than before, and nothing has grown since the first third
// of the time. `make soak` runs it.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("make soak runs it")
	}
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again: make soak FOR=%v SEED=%d", *soakFor, seed)
	w := newTown(t, rand.New(rand.NewPCG(seed, 0)))
	startStorm(t, w.vault, 20*time.Second, halves, w.ways()...).end() // memory that is kept for reuse
	base := w.rests()

	s := startStorm(t, w.vault, 20*time.Second, halves, w.ways()...)
	s.lose, s.fail = w.tell, w.tellFailures
	s.on.Store(true)
	w.watch.start()
	end, warm := s.began.Add(*soakFor), s.began.Add(*soakFor/3)
	done := map[string]int{}
	for deck := w.shuffled(); time.Now().Before(end) && s.lost.Load() == 0; {
		burst := time.Now()
		for range 1 + w.r.IntN(5) {
			if len(deck) == 0 {
				deck = w.shuffled()
			}
			what := deck[0]
			deck = deck[1:]
			if what.early && time.Now().After(warm) {
				continue
			}
			t.Logf("%v: %s", time.Since(s.began).Round(time.Millisecond), what.name)
			done[what.name]++
			s.harm()
			what.do(w)
			time.Sleep(time.Duration(w.r.Int64N(int64(500 * time.Millisecond))))
			if time.Since(burst) > longBurst {
				break
			}
		}
		w.recovers()
		time.Sleep(time.Duration(w.r.Int64N(int64(10 * time.Second))))
	}
	w.watch.end()
	s.end()
	sum := 0
	for _, what := range faults() {
		t.Logf("%4d × %s", done[what.name], what.name)
		sum += done[what.name]
	}
	t.Logf("%d faults, which ended %d connections by intent", sum, w.ended)
	w.watch.judge(t, soakFor.Hours()/3, soakFor.Hours())
	w.watch.draw(t, *soakPicture, fmt.Sprintf("make soak FOR=%v SEED=%d on %s: %d faults", *soakFor, seed, s.began.UTC().Format(time.DateOnly), sum))
	w.settles(base)
}

// shuffled are all faults once, in an order that follows from the seed.
func (w *town) shuffled() []fault {
	all := faults()
	w.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// recovers waits until all agents have all servers, and no end is without a carrier: the
// other end may not know as yet.
func (w *town) recovers() {
	defer func(from time.Time) {
		w.t.Logf("recovered after %v", time.Since(from).Round(time.Millisecond))
	}(time.Now())
	for _, a := range []*suite.Agent{w.agent, w.beside, w.node, w.mortal} {
		connected(w.t, a, len(w.servers), time.Minute)
	}
	for _, a := range w.guests {
		connected(w.t, a, 1, time.Minute)
	}
	eventually(w.t, 2*time.Minute, "connections without a carrier", func() (bool, any) {
		n := metric(w.agent.HealthURL("/metrics"), "agent_detached_connections")
		for _, at := range w.health {
			n += metric("http://"+at+"/metrics", "konnectivity_sidecar_detached_connections")
		}
		return n == 0, n
	})
}
