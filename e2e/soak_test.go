package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

var (
	soakFor  = flag.Duration("soak", 0, "how long TestSoak does harm")
	soakSeed = flag.Uint64("seed", 0, "what its faults follow from; 0: random, and printed")
)

// fault is something that is done to a fleet; it returns once that is over.
type fault struct {
	name string
	do   func(f *fleet, r *rand.Rand)
}

var faults = []fault{
	{"cut the sidecars' links", func(f *fleet, r *rand.Rand) { f.toClients.cut() }},
	{"cut an agent's link", func(f *fleet, r *rand.Rand) { f.anyAgentLeg(r).cut() }},
	{"half-cut the sidecars' links", func(f *fleet, r *rand.Rand) { f.toClients.sever(r.IntN(2) == 0) }},
	{"half-cut an agent's link", func(f *fleet, r *rand.Rand) { f.anyAgentLeg(r).sever(r.IntN(2) == 0) }},
	{"stop the sidecars' links for a moment", func(f *fleet, r *rand.Rand) { standStill(f.toClients, r, 2*time.Second) }},
	{"stop an agent's link for a moment", func(f *fleet, r *rand.Rand) { standStill(f.anyAgentLeg(r), r, 2*time.Second) }},
	{"stop the sidecars' links", func(f *fleet, r *rand.Rand) { standStill(f.toClients, r, 25*time.Second) }},
	{"stop an agent's link", func(f *fleet, r *rand.Rand) { standStill(f.anyAgentLeg(r), r, 25*time.Second) }},
	{"kill a server", func(f *fleet, r *rand.Rand) { f.kill(f.servers[r.IntN(len(f.servers))]) }},
	{"kill all servers", func(f *fleet, r *rand.Rand) {
		for _, srv := range f.servers {
			srv.Process.Kill()
		}
		for _, srv := range f.servers {
			f.restart(srv)
		}
	}},
	{"replace a server", func(f *fleet, r *rand.Rand) {
		srv := f.servers[r.IntN(len(f.servers))]
		stopInOrder(f.t, srv.Process)
		f.restart(srv)
	}},
}

func (f *fleet) anyAgentLeg(r *rand.Rand) *balancer { return f.toAgents[r.IntN(len(f.toAgents))] }

func standStill(b *balancer, r *rand.Rand, longest time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Int64N(int64(longest))))
	defer cancel()
	b.stands(ctx)
}

// Faults from a seed come in bursts, while transfers run. Nothing is lost, and
// at the end the processes hold what they held before. `make soak` runs it.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("make soak runs it")
	}
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again: make soak FOR=%v SEED=%d", *soakFor, seed)
	window := []string{"--resume-window=1m"}
	f := newFleet(t, 3, flags{server: window, agent: window, sidecars: window})
	startStorm(t, f.vault, 20*time.Second, halves, f.ways()...).end() // memory that is kept for reuse
	base, resident := f.rests(), f.resident()

	s := startStorm(t, f.vault, 20*time.Second, halves, f.ways()...)
	s.on.Store(true)
	r := rand.New(rand.NewPCG(seed, 0))
	count := 0
	for end := time.Now().Add(*soakFor); time.Now().Before(end) && s.lost.Load() == 0; {
		burst := time.Now()
		for range 1 + r.IntN(5) {
			count++
			what := faults[r.IntN(len(faults))]
			t.Logf("%v: %s", time.Since(s.began).Round(time.Millisecond), what.name)
			s.harm()
			what.do(f, r)
			time.Sleep(time.Duration(r.Int64N(int64(500 * time.Millisecond))))
			if time.Since(burst) > longBurst {
				break
			}
		}
		connected(t, f.agent, len(f.servers), time.Minute)
		f.carried(2 * time.Minute)
		time.Sleep(time.Duration(r.Int64N(int64(10 * time.Second))))
	}
	s.end()
	f.settles(base)
	t.Logf("%d faults; held before %v", count, base)
	eventually(t, 5*time.Minute, "resident memory, in MiB", func() (bool, any) {
		now, ok := f.resident(), true
		for what, mib := range now {
			ok = ok && mib <= resident[what]*5/4+8
		}
		return ok, fmt.Sprintf("%v; before %v", now, resident)
	})
	t.Logf("resident memory in MiB: before %v, after %v", resident, f.resident())
}

// longBurst is for how long a burst goes on. Links may stand still for 25 s at its
// end, and half of one that is half-cut does for 20 s: two of these would outlast the
// window.
const longBurst = 2 * time.Second

// carried waits until no end is without a carrier: the other end may not know as yet.
func (f *fleet) carried(patience time.Duration) {
	f.t.Helper()
	eventually(f.t, patience, "connections without a carrier", func() (bool, any) {
		n := metric(f.agent.HealthURL("/metrics"), "agent_detached_connections")
		for _, at := range f.health {
			n += metric("http://"+at+"/metrics", "konnectivity_sidecar_detached_connections")
		}
		return n == 0, n
	})
}

// resident is how much memory the processes have, in MiB.
func (f *fleet) resident() map[string]int64 {
	all := map[string]int64{}
	add := func(name string, p *suite.Process) { all[name] += must(p.Memory())(f.t).Resident() >> 20 }
	add("agent", f.agent.Process)
	add("socks5", f.socks.Process)
	add("https", f.https.Process)
	for _, srv := range f.servers {
		add("servers", srv.Process)
	}
	return all
}
