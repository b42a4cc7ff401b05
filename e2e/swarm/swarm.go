package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// cluster is a tenant whose agent and sidecar run.
type cluster struct {
	*tenant
	agent, client *peer

	changing sync.Mutex   // held by who changes the tenant
	cuts     atomic.Int64 // odd while its own connections may be cut
}

// swarm is all of them.
type swarm struct {
	clusters []*cluster
	running  sync.WaitGroup
	cancel   context.CancelFunc
}

// start has every cluster connect to srv.
func start(ctx context.Context, tenants []*tenant, srv *suite.Server) *swarm {
	return startAt(ctx, tenants, srv.AgentPort, srv.ClientPort)
}

func startAt(ctx context.Context, tenants []*tenant, agentPort, clientPort int) *swarm {
	ctx, cancel := context.WithCancel(ctx)
	s := &swarm{cancel: cancel}
	budget := link.NewBudget(0)
	for _, t := range tenants {
		c := &cluster{tenant: t}
		for _, p := range []struct {
			to   **peer
			role link.Role
			port int
		}{{&c.agent, link.RoleAgent, agentPort}, {&c.client, link.RoleClient, clientPort}} {
			// The ids are the same in all clusters: to tell them apart is the
			// server's job.
			config := link.Config{Hello: link.Hello{Role: p.role, ID: "the-" + p.role.String(), Software: "swarm"}, Budget: budget}
			if p.role == link.RoleAgent {
				config.PeerNumbersClients, config.Forwarder = true, &tunnel.Forwarder{Dialer: greeter(t.name)}
			}
			*p.to = &peer{address: suite.Loopback(p.port), tls: t.secure[p.role], link: config, from: t.from}
			s.running.Go(func() { (*p.to).run(ctx) })
		}
		s.clusters = append(s.clusters, c)
	}
	return s
}

// close ends all links and joins what ran.
func (s *swarm) close() {
	s.cancel()
	s.running.Wait()
}

// lookEvery is how often links are counted while all are waited for.
const lookEvery = 20 * time.Millisecond

// complete waits until every agent and every sidecar has a link that is none of
// the old ones.
func (s *swarm) complete(ctx context.Context, old map[*link.Session]bool) error {
	for {
		missing, err := s.missing(old)
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d links are missing: %w", missing, 2*len(s.clusters), err)
		case <-time.After(lookEvery):
		}
	}
}

// missing counts the links that are not there, or are of before; err is why one
// is not.
func (s *swarm) missing(old map[*link.Session]bool) (n int, err error) {
	err = context.DeadlineExceeded
	for _, c := range s.clusters {
		for _, p := range []*peer{c.agent, c.client} {
			if now := p.session.Load(); now != nil && !old[now] {
				continue
			}
			n++
			if why := p.last.Load(); why != nil {
				err = *why
			}
		}
	}
	return n, err
}

// sessions are those there are.
func (s *swarm) sessions() map[*link.Session]bool {
	all := make(map[*link.Session]bool)
	for _, c := range s.clusters {
		for _, p := range []*peer{c.agent, c.client} {
			if now := p.session.Load(); now != nil {
				all[now] = true
			}
		}
	}
	return all
}

// failures counts the attempts to connect that failed, and says why one did.
func (s *swarm) failures() (n int64, why error) {
	for _, c := range s.clusters {
		for _, p := range []*peer{c.agent, c.client} {
			n += p.tried.Load()
			if last := p.last.Load(); last != nil {
				why = *last
			}
		}
	}
	return n, why
}
