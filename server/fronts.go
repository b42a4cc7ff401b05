package server

import (
	"cmp"
	"fmt"

	"konnectivity/internal/admission"
	"konnectivity/server/frontend"
	"konnectivity/tunnel/link"
)

// buildFronts makes the frontends of the flags' listeners.
func (s *Server) buildFronts() error {
	for side := range sides {
		for _, l := range s.opts.listeners(side) {
			front, err := s.front(side, l.Recheck, s.frontConfig(side, l))
			if err != nil {
				return fmt.Errorf("%s: %w", l.Addr(), err)
			}
			s.fronts[side] = append(s.fronts[side], front)
		}
	}
	return nil
}

// front serves a side's peers by all protocols that the side speaks.
func (s *Server) front(side side, judge recheck, cfg frontend.Config) (*frontend.Frontend, error) {
	in := entrance{s, side, judge}
	if g := s.byGRPC[side]; g != nil {
		cfg.GRPC = in.to(g.serveGRPC)
	}
	switch {
	case side == agents && !s.opts.NoLink:
		cfg.Link = in.to(s.serveAgentLink)
	case side == clients && !s.opts.NoLink && cfg.TLS != nil:
		cfg.Link = in.to(s.serveClientLink)
	}
	if side == clients && !s.opts.NoConnect {
		cfg.Connect = in.to(s.serveConnect)
	}
	return frontend.New(cfg)
}

func (s *Server) frontConfig(side side, l Listener) frontend.Config {
	preAuth := s.preAuth
	if l.Addr().Network() == "unix" {
		preAuth = s.local
	}
	cfg := frontend.Config{
		Name: side.String(), TLS: l.by(s.tenants.chooser(side)), Proxies: l.Proxies, MaxConns: s.roomOf(side), PreAuth: preAuth, Metrics: s.metrics, Log: s.opts.Log,
		LogOf: s.logOfOwner, LinkALPN: link.ALPN,
	}
	if !s.opts.NoLink {
		cfg.Prepare = link.Buffered
	}
	return cfg
}

// roomOf is how many connections each port of a side may have.
func (s *Server) roomOf(side side) int {
	most := cmp.Or(s.opts.MaxConns, frontend.MaxConns)
	if side == clients {
		most = admission.AtMost(most, shareOfPort(admission.Descriptors(), len(s.opts.Clients)))
	}
	return most
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
