package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/observe"
	"konnectivity/server/registry"
)

// peerFigures are those of all clusters' agents, and of other servers, collected once per scrape:
// there may be a thousand clusters.
type peerFigures struct {
	registry.Counts
	via       map[registry.Via]int // connections, by protocol
	roundTrip time.Duration        // the longest

	servers, missing, routes int
}

func (s *Server) peerFigures() peerFigures {
	f := peerFigures{Counts: s.counts(), via: make(map[registry.Via]int)}
	s.eachCluster(func(cl *cluster) {
		for _, a := range cl.agents.Agents() {
			f.via[a.Via]++
			f.roundTrip = max(f.roundTrip, a.Backend.RTT())
		}
	})
	if s.peering != nil {
		f.servers, f.routes = s.peering.count()
		f.missing = s.peering.Missing()
	}
	return f
}

// figures makes the metrics whose values are read at each scrape.
func (s *Server) figures() prometheus.Collector {
	all := observe.NewFigures(MetricsPrefix, s.peerFigures)
	gauge := func(name, help string, value func() float64) {
		all.Gauge(name, help, func(peerFigures) float64 { return value() })
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
	all.Gauge("peer_servers", "Number of other servers that are linked.", func(f peerFigures) float64 { return float64(f.servers) })
	all.Gauge("peer_servers_missing", "Number of addresses of other servers to which there is no link.", func(f peerFigures) float64 { return float64(f.missing) })
	all.Gauge("peer_routes", "Number of agents and identifiers that other servers have told of.", func(f peerFigures) float64 { return float64(f.routes) })
	all.Bytes("forwarded_bytes_total", "Count of payload bytes carried, by direction.", func(peerFigures) (up, down int64) { return s.carried() }, "to_destination", "to_client")
	all.Add(prometheus.GaugeValue, "buffered_bytes", "Bytes of the memory budget in use, by protocol: received bytes that wait for a reader and, for links, what connections count as.", func(_ peerFigures, tell observe.Tell) {
		tell(float64(s.opts.Budget.Used()), "link")
		tell(float64(s.grpc.Budget.Used()), "grpc")
	}, "protocol")
	all.Add(prometheus.GaugeValue, "buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", func(_ peerFigures, tell observe.Tell) {
		tell(float64(s.opts.Budget.Max()), "link")
		tell(float64(s.grpc.Budget.Max()), "grpc")
	}, "protocol")
	all.Gauge("ready_backend_connections", "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends",
		func(f peerFigures) float64 { return float64(f.Agents) })
	all.Add(prometheus.GaugeValue, "ready_backends", "Number of konnectivity agent connected to the proxy server", func(f peerFigures, tell observe.Tell) {
		for _, strategy := range s.opts.Strategies {
			tell(float64(f.By[strategy]), string(strategy))
		}
	}, "proxy_strategy")
	all.Add(prometheus.GaugeValue, "agent_connections", "Number of connections of agents, by protocol.", func(f peerFigures, tell observe.Tell) {
		for _, via := range []registry.Via{registry.ViaGRPC, registry.ViaLink} {
			tell(float64(f.via[via]), string(via))
		}
	}, "protocol")
	all.Gauge("agent_round_trip_max_seconds", "Longest round trip to a connected agent.", func(f peerFigures) float64 { return f.roundTrip.Seconds() })
	return all
}
