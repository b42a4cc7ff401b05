package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/admin"
	"konnectivity/internal/logging"
	"konnectivity/internal/observe"
	"konnectivity/internal/observe/profiles"
	"konnectivity/tunnel"
)

func (s *Server) healthHandler() http.Handler {
	mux := http.NewServeMux()
	// Status and body are upstream's (cmd/server/app/server.go).
	health := observe.NewHealth(observe.HealthOptions{FailureStatus: http.StatusInternalServerError, Brief: true})
	health.Ready("agents", s.Ready)
	health.Mount(mux)
	observe.MountMetrics(mux, s.opts.Registry)
	return mux
}

func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	observe.MountMetrics(mux, s.opts.Registry)
	if s.opts.Profiles {
		profiles.Mount(mux, s.opts.ContentionProfiles)
	}
	return admin.Handler(mux, s.adminSource())
}

// gauges registers what is read when scraped.
func (s *Server) gauges() {
	m := s.metrics
	m.Gauge("ready_backend_connections", "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends", nil,
		func() float64 { return float64(s.agents.Counts().Agents) })
	for _, strategy := range s.opts.Strategies {
		m.Gauge("ready_backends", "Number of konnectivity agent connected to the proxy server", prometheus.Labels{"proxy_strategy": string(strategy)},
			func() float64 { return float64(s.agents.Counts().By[strategy]) })
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
		select {
		case <-s.draining:
			return 1
		default:
			return 0
		}
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
	for _, a := range s.agents.Agents() {
		if a.Via == via {
			n++
		}
	}
	return n
}

func (s *Server) longestRoundTrip() float64 {
	longest := time.Duration(0)
	for _, a := range s.agents.Agents() {
		longest = max(longest, a.RTT)
	}
	return longest.Seconds()
}

// connectionLog tells of every connection at debug, under the id by which it
// can be followed across sidecar, server and agent.
type connectionLog struct{ log logrus.FieldLogger }

// silent says that nobody reads debug lines, so that none needs to be made.
func (c connectionLog) silent() bool { return !logging.Enabled(c.log, logrus.DebugLevel) }

func (c connectionLog) fields(flow *tunnel.Flow) logrus.FieldLogger {
	f := logrus.Fields{"id": flow.ID, "front": flow.Front, "address": flow.Address}
	if flow.Source != nil {
		f["source"] = flow.Source.String()
	}
	return c.log.WithFields(f)
}

// Dialed implements tunnel.Observer.
func (c connectionLog) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if c.silent() {
		return
	}
	c.fields(f).WithField("took", took.String()).WithField("error", err).Debug("destination dialed")
}

// Opened implements tunnel.Observer.
func (connectionLog) Opened(*tunnel.Flow) {}

// Closed implements tunnel.Observer.
func (c connectionLog) Closed(f *tunnel.Flow, took time.Duration, err error) {
	if c.silent() {
		return
	}
	up, down := f.Sent()
	c.fields(f).WithFields(logrus.Fields{"took": took.String(), "up": up, "down": down, "error": err}).Debug("connection ended")
}
