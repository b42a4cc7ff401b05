package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/tunnel"
)

// gauges registers what is read when scraped.
func (s *Server) gauges() {
	m := s.metrics
	m.Gauge("ready_backend_connections", "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends", nil,
		func() float64 { return float64(s.counts().Agents) })
	for _, strategy := range s.opts.Strategies {
		m.Gauge("ready_backends", "Number of konnectivity agent connected to the proxy server", prometheus.Labels{"proxy_strategy": string(strategy)},
			func() float64 { return float64(s.counts().By[strategy]) })
	}
	for _, via := range []string{"grpc", "link"} {
		m.Gauge("agent_connections", "Number of connections of agents, by protocol.", prometheus.Labels{"protocol": via},
			func() float64 { return float64(s.countAgents(via)) })
	}
	m.Gauge("agent_round_trip_max_seconds", "Longest round trip to a connected agent.", nil, s.longestRoundTrip)
	m.Gauge("unproven_connections", "Number of current connections whose peer has yet to prove who it is and say what it wants; part of listener_connections.", nil, func() float64 {
		n, _ := s.strangers.Held()
		local, _ := s.local.Held()
		return float64(n + local)
	})
	m.Gauge("unproven_bytes", "Estimated memory that unproven connections take, in bytes.", nil, func() float64 {
		_, bytes := s.strangers.Held()
		_, local := s.local.Held()
		return float64(bytes + local)
	})
	m.Gauge("draining", "1 while the server is shutting down.", nil, func() float64 {
		if tunnel.Closed(s.draining) {
			return 1
		}
		return 0
	})
	for protocol, budget := range map[string]interface {
		Used() int64
	}{"link": s.opts.Budget, "grpc": s.limits.Budget} {
		m.Gauge("buffered_bytes", "Bytes of the memory budget in use, by protocol: received bytes that wait for a reader and, for links, what connections count as.", prometheus.Labels{"protocol": protocol},
			func() float64 { return float64(budget.Used()) })
	}
	m.Gauge("buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", prometheus.Labels{"protocol": "link"},
		func() float64 { return float64(s.opts.Budget.Max()) })
	m.Gauge("buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", prometheus.Labels{"protocol": "grpc"},
		func() float64 { return float64(s.limits.Budget.Total()) })
}

func (s *Server) countAgents(via string) (n int) {
	s.eachCluster(func(cl *cluster) {
		for _, a := range cl.agents.Agents() {
			if a.Via == via {
				n++
			}
		}
	})
	return n
}

func (s *Server) longestRoundTrip() float64 {
	longest := time.Duration(0)
	s.eachCluster(func(cl *cluster) {
		for _, a := range cl.agents.Agents() {
			longest = max(longest, a.RTT)
		}
	})
	return longest.Seconds()
}
