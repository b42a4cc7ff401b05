package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"konnectivity/internal/admission"
	"konnectivity/server/frontend"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// buildClients makes the side that asks for destinations.
func (s *Server) buildClients() error {
	if !s.opts.NoGRPC {
		s.clientGRPC = newGRPCFront(s.opts.ClientKeepalive, grpc.MaxConcurrentStreams(maxStreams), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow))
		s.proxyService = legacy.NewProxyService(sharing{s.forwarder, connMemory}, legacy.ProxyServiceConfig{
			Admit: admitStream, Limits: s.limits, Metrics: s.metrics, Log: s.opts.Log,
		})
		s.proxyService.Register(s.clientGRPC.server)
	}
	for _, l := range s.opts.Clients {
		cfg := s.frontConfig("clients", l)
		if s.clientGRPC != nil {
			cfg.GRPC = s.accounted(s.handleClientGRPC)
		}
		if !s.opts.NoConnect {
			cfg.Connect = s.accounted(frontend.Connect(sharing{s.forwarder, clientMemory + connMemory}, s.metrics, s.agents.Ready))
		}
		if !s.opts.NoLink && l.TLS != nil {
			cfg.Link = s.accounted(s.serveClientLink)
		}
		front, err := frontend.New(cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", l.Addr(), err)
		}
		s.clientFronts = append(s.clientFronts, front)
	}
	return nil
}

func (s *Server) frontConfig(name string, l Listener) frontend.Config {
	most := cmp.Or(s.opts.MaxConns, frontend.MaxConns)
	if name == "clients" {
		most = admission.AtMost(most, shareOfPort(admission.Descriptors(), len(s.opts.Clients)))
	}
	strangers := s.strangers
	if l.Addr().Network() == "unix" {
		strangers = s.local
	}
	return frontend.Config{
		Name: name, TLS: l.TLS, Proxies: l.Proxies, MaxConns: most, Strangers: strangers, Metrics: s.metrics, Log: s.opts.Log,
		LinkALPN: link.ALPN, Prepare: s.prepare(),
	}
}

// shareOfPort is how many connections each of so many ports for clients may
// have, so that together they have the clients' share of the descriptors; 0 for
// any number.
func shareOfPort(descriptors, ports int) int {
	share := admission.ShareOut(descriptors).Clients
	if share == 0 {
		return 0
	}
	return max(1, share/ports)
}

// prepare makes raw connections fit for links, where there are any.
func (s *Server) prepare() func(net.Conn) net.Conn {
	if s.opts.NoLink {
		return nil
	}
	return link.Cork
}

// serveClientLink is a sidecar's link: each stream it opens is a request.
func (s *Server) serveClientLink(ctx context.Context, c *frontend.Conn) {
	acct := accountOf(ctx)
	cfg := s.linkConfig()
	cfg.Hello.Serving = s.serving()
	cfg.Forwarder = s.metrics.LinkRequests(linked{sharing{s.forwarder, connMemory}, acct})
	cfg.Budget = acct.budget
	setLiveness(&cfg, s.opts.ClientKeepalive)
	taken := false
	cfg.Verify = func(_ context.Context, peer link.Hello) error {
		if peer.Role != link.RoleClient {
			return fmt.Errorf("this port is for clients, not for %ss", peer.Role)
		}
		if taken = acct.budget.Take(clientMemory); !taken {
			return errors.New(noMemory)
		}
		return nil
	}
	session := s.acceptLink(ctx, c, cfg)
	defer func() {
		if taken {
			acct.budget.Give(clientMemory)
		}
	}()
	if session == nil {
		return
	}
	defer s.closeLink(session)
	leave := s.peers.join(&peer{
		drain: session.Drain, count: session.SetServerCount, serving: session.SetServing,
		client: sidecarLink{session, c.RemoteAddr().String(), time.Now()},
	})
	defer leave()
	select {
	case <-session.Done():
		return
	case <-ctx.Done():
		return
	case <-s.draining:
	}
	// What is open may end by itself; Run's grace period bounds the wait.
	_ = session.WaitIdle(ctx)
}
