package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/server/metrics"
)

// gauges registers the metrics whose values are read at each scrape.
func (s *Server) gauges() {
	m := s.metrics
	m.Gauge("unproven_connections", "Number of current connections whose peer has yet to prove who it is and say what it wants; part of listener_connections.", nil, func() float64 {
		n, _ := s.preAuth.Held()
		local, _ := s.local.Held()
		return float64(n + local)
	})
	m.Gauge("unproven_bytes", "Estimated memory that unproven connections take, in bytes.", nil, func() float64 {
		_, bytes := s.preAuth.Held()
		_, local := s.local.Held()
		return float64(bytes + local)
	})
	m.Gauge("draining", "1 while the server is shutting down.", nil, func() float64 {
		if s.drains.Err() != nil {
			return 1
		}
		return 0
	})
	m.Gauge("peer_servers", "Number of other servers that are linked.", nil, s.ofPeering(func(p *peering) int { n, _ := p.count(); return n }))
	m.Gauge("peer_servers_missing", "Number of addresses of other servers to which there is no link.", nil, s.ofPeering(func(p *peering) int { return p.Missing() }))
	m.Gauge("peer_routes", "Number of agents and identifiers that other servers have told of.", nil, s.ofPeering(func(p *peering) int { _, n := p.count(); return n }))
	for protocol, budget := range map[string]interface {
		Used() int64
	}{"link": s.opts.Budget, "grpc": s.grpc.Budget} {
		m.Gauge("buffered_bytes", "Bytes of the memory budget in use, by protocol: received bytes that wait for a reader and, for links, what connections count as.", prometheus.Labels{"protocol": protocol},
			func() float64 { return float64(budget.Used()) })
	}
	m.Gauge("buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", prometheus.Labels{"protocol": "link"},
		func() float64 { return float64(s.opts.Budget.Max()) })
	m.Gauge("buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", prometheus.Labels{"protocol": "grpc"},
		func() float64 { return float64(s.grpc.Budget.Max()) })
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

// agentFigures collects the figures of all clusters' agents once per scrape: there may
// be a thousand clusters.
type agentFigures struct{ server *Server }

// agentVias are the protocols that agents come by.
var agentVias = []string{"grpc", "link"}

var agentDescs = struct{ connections, ready, via, roundTrip *prometheus.Desc }{
	connections: prometheus.NewDesc(metrics.Prefix+"ready_backend_connections", "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends", nil, nil),
	ready:       prometheus.NewDesc(metrics.Prefix+"ready_backends", "Number of konnectivity agent connected to the proxy server", []string{"proxy_strategy"}, nil),
	via:         prometheus.NewDesc(metrics.Prefix+"agent_connections", "Number of connections of agents, by protocol.", []string{"protocol"}, nil),
	roundTrip:   prometheus.NewDesc(metrics.Prefix+"agent_round_trip_max_seconds", "Longest round trip to a connected agent.", nil, nil),
}

// Describe implements prometheus.Collector.
func (f agentFigures) Describe(out chan<- *prometheus.Desc) {
	d := agentDescs
	for _, desc := range []*prometheus.Desc{d.connections, d.ready, d.via, d.roundTrip} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (f agentFigures) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counts := f.server.counts()
	gauge(agentDescs.connections, float64(counts.Agents))
	for _, strategy := range f.server.opts.Strategies {
		gauge(agentDescs.ready, float64(counts.By[strategy]), string(strategy))
	}
	by, longest := f.server.agentsByProtocol()
	for _, via := range agentVias {
		gauge(agentDescs.via, float64(by[via]), via)
	}
	gauge(agentDescs.roundTrip, longest.Seconds())
}

// agentsByProtocol is how many connections agents have by each, and the longest
// round trip to one.
func (s *Server) agentsByProtocol() (by map[string]int, longest time.Duration) {
	by = make(map[string]int)
	s.eachCluster(func(cl *cluster) {
		for _, a := range cl.agents.Agents() {
			by[a.Via]++
			longest = max(longest, a.RTT)
		}
	})
	return by, longest
}
