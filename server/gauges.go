package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/observe"
	"konnectivity/server/registry"
)

// agentFigures are those of all clusters' agents, collected once per scrape: there may be a
// thousand clusters.
type agentFigures struct {
	registry.Counts
	via       map[registry.Via]int // connections, by protocol
	roundTrip time.Duration        // the longest
}

func (s *Server) agentFigures() agentFigures {
	f := agentFigures{Counts: s.counts(), via: make(map[registry.Via]int)}
	s.eachCluster(func(cl *cluster) {
		for _, a := range cl.agents.Agents() {
			f.via[a.Via]++
			f.roundTrip = max(f.roundTrip, a.Backend.RTT())
		}
	})
	return f
}

// figures makes the metrics whose values are read at each scrape.
func (s *Server) figures() prometheus.Collector {
	all := observe.NewFigures(MetricsPrefix, s.agentFigures)
	gauge := func(name, help string, value func() float64) {
		all.Gauge(name, help, func(agentFigures) float64 { return value() })
	}
	gauge("pending_backend_dials", "Current number of pending backend dial requests", func() float64 { return float64(s.limits.PendingDials()) })
	gauge("unproven_connections", "Number of current connections whose peer has yet to prove who it is and say what it wants; part of listener_connections.", func() float64 {
		n, _ := s.preAuth.Held()
		local, _ := s.local.Held()
		return float64(n + local)
	})
	gauge("unproven_bytes", "Estimated memory that unproven connections take, in bytes.", func() float64 {
		_, bytes := s.preAuth.Held()
		_, local := s.local.Held()
		return float64(bytes + local)
	})
	gauge("draining", "1 while the server is shutting down.", func() float64 { return observe.Flag(s.drains.Err() != nil) })
	gauge("peer_servers", "Number of other servers that are linked.", s.ofPeering(func(p *peering) int { n, _ := p.count(); return n }))
	gauge("peer_servers_missing", "Number of addresses of other servers to which there is no link.", s.ofPeering(func(p *peering) int { return p.Missing() }))
	gauge("peer_routes", "Number of agents and identifiers that other servers have told of.", s.ofPeering(func(p *peering) int { _, n := p.count(); return n }))
	all.Bytes("forwarded_bytes_total", "Count of payload bytes carried, by direction.", func(agentFigures) (up, down int64) { return s.carried() }, "to_destination", "to_client")
	all.Add(prometheus.GaugeValue, "buffered_bytes", "Bytes of the memory budget in use, by protocol: received bytes that wait for a reader and, for links, what connections count as.", func(_ agentFigures, tell observe.Tell) {
		tell(float64(s.opts.Budget.Used()), "link")
		tell(float64(s.grpc.Budget.Used()), "grpc")
	}, "protocol")
	all.Add(prometheus.GaugeValue, "buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", func(_ agentFigures, tell observe.Tell) {
		tell(float64(s.opts.Budget.Max()), "link")
		tell(float64(s.grpc.Budget.Max()), "grpc")
	}, "protocol")
	all.Gauge("ready_backend_connections", "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends",
		func(f agentFigures) float64 { return float64(f.Agents) })
	all.Add(prometheus.GaugeValue, "ready_backends", "Number of konnectivity agent connected to the proxy server", func(f agentFigures, tell observe.Tell) {
		for _, strategy := range s.opts.Strategies {
			tell(float64(f.By[strategy]), string(strategy))
		}
	}, "proxy_strategy")
	all.Add(prometheus.GaugeValue, "agent_connections", "Number of connections of agents, by protocol.", func(f agentFigures, tell observe.Tell) {
		for _, via := range []registry.Via{registry.ViaGRPC, registry.ViaLink} {
			tell(float64(f.via[via]), string(via))
		}
	}, "protocol")
	all.Gauge("agent_round_trip_max_seconds", "Longest round trip to a connected agent.", func(f agentFigures) float64 { return f.roundTrip.Seconds() })
	return all
}

// ofPeering reads a figure of other servers; 0: there are none.
func (s *Server) ofPeering(read func(*peering) int) func() float64 {
	return func() float64 {
		if s.peering == nil {
			return 0
		}
		return float64(read(s.peering))
	}
}
