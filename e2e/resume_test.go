package e2e

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// pause waits, unless it is over before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Connections outlive the links of either leg, which are cut time and again.
func TestConnectionsOutliveLinks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, flags{})
	base := f.rests()
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(10, 100) {
		for _, leg := range []*balancer{f.toClients, f.toAgents[rand.N(2)]} {
			leg.linked(t)
			s.harm()
			leg.cut()
			time.Sleep(rand.N(300 * time.Millisecond))
		}
	}
	s.end()
	f.settles(base)
}

// Connections outlive links of which only one side hears that they are gone. The
// other keeps its end until it has been silent for too long; where that is the
// server, agents' connections stand still for as long.
func TestConnectionsOutliveHalfDeadLinks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, flags{})
	s := startStorm(t, f.vault, scaled(4*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(3, 20) {
		s.harm()
		f.toClients.sever(true)
		time.Sleep(time.Second)
	}
	if scaled(false, true) {
		for _, leg := range f.toAgents {
			s.harm()
			leg.sever(true)
			time.Sleep(livenessBound)
		}
	}
	s.end()
}

// Connections outlive links that stand still: for some moments, and, where there
// is time, for so long that they are given up.
func TestConnectionsOutliveSilence(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, flags{})
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(1, 3) {
		for _, leg := range []*balancer{f.toClients, f.toAgents[0], f.toAgents[1]} {
			s.harm()
			ctx, cancel := context.WithTimeout(t.Context(), scaled(time.Second, 25*time.Second))
			leg.stands(ctx)
			cancel()
			time.Sleep(scaled(500*time.Millisecond, 5*time.Second))
		}
	}
	s.end()
}

// Connections outlive three servers that are killed in turn.
func TestConnectionsOutliveServers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, flags{})
	base := f.rests()
	s := startStorm(t, f.vault, scaled(8*time.Second, 30*time.Second), halves, f.ways()...)
	for i := range scaled(4, 30) {
		next := time.After(2 * time.Second)
		s.harm()
		f.kill(f.servers[i%3])
		<-next
	}
	s.end()
	f.settles(base)
}

// Connections outlive the only server, if it comes back in time.
func TestConnectionsOutliveTheOnlyServer(t *testing.T) {
	t.Parallel()
	window := []string{"--resume-window=1m"} // in which a busy machine starts a server, too
	f := newFleet(t, 1, flags{server: window, agent: window, sidecars: window})
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(1, 5) {
		time.Sleep(time.Second)
		s.harm()
		f.servers[0].Process.Kill()
		time.Sleep(scaled(time.Second, 10*time.Second))
		f.restart(f.servers[0])
		connected(t, f.agent, 1, patience)
	}
	s.end()
}
