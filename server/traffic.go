package server

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"konnectivity/internal/admin"
	"konnectivity/server/metrics"
	"konnectivity/server/tenancy"
	"konnectivity/tunnel"
	"konnectivity/tunnel/roam"
)

// traffic counts what a tenant does. It is a tunnel.Observer.
type traffic struct {
	totals  tunnel.Totals
	dialed  atomic.Int64 // with success
	failed  atomic.Int64
	bound   atomic.Int64 // of those that failed
	opened  atomic.Int64
	closed  atomic.Int64
	refused atomic.Int64 // agents
}

// Dialed implements tunnel.Observer.
func (t *traffic) Dialed(f *tunnel.Flow, _ time.Duration, err error) {
	if f.Resume.Again() {
		return // about a connection that was counted when it began
	}
	if err == nil {
		t.dialed.Add(1)
		return
	}
	t.failed.Add(1)
	if tunnel.FailureOf(err) == tunnel.FailBound {
		t.bound.Add(1)
	}
}

// Opened implements tunnel.Observer.
func (t *traffic) Opened(*tunnel.Flow) { t.opened.Add(1) }

// Closed implements tunnel.Observer.
func (t *traffic) Closed(*tunnel.Flow, time.Duration, error) { t.closed.Add(1) }

// open is how many connections are.
func (t *traffic) open() int64 {
	closed := t.closed.Load() // first, so that it is never more than were opened
	return t.opened.Load() - closed
}

// fill adds it to what the admin API shows of a tenant.
func (t *traffic) fill(v *admin.Tenant) {
	v.Connections.Open, v.Connections.Total = int(t.open()), t.opened.Load()
	v.Dials = admin.Dials{Total: t.dialed.Load() + t.failed.Load(), Failed: t.failed.Load(), Failures: map[string]int64{}}
	if n := t.bound.Load(); n > 0 {
		v.Dials.Failures[tunnel.FailBound.Label()] = n
	}
	v.Refused = t.refused.Load()
	v.UpBytes, v.DownBytes = t.totals.Up.Load(), t.totals.Down.Load()
}

// past is what tenants that are over have added to the server's figures, which
// never fall.
type past struct {
	up, down int64
	resumed  roam.Stats
}

func (p *past) add(cl *cluster) {
	p.up += cl.traffic.totals.Up.Load()
	p.down += cl.traffic.totals.Down.Load()
	p.resumed = p.resumed.Plus(cl.ends.Stats())
}

// carried is the bytes of all tenants since the start.
func (t *tenants) carried() (up, down int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.past
	t.all(func(cl *cluster) {
		all.up += cl.traffic.totals.Up.Load()
		all.down += cl.traffic.totals.Down.Load()
	})
	return all.up, all.down
}

// all calls do for those that are served and those that are ending. t.mu is
// held.
func (t *tenants) all(do func(*cluster)) {
	for _, cl := range t.live {
		do(cl)
	}
	for cl := range t.ending {
		do(cl)
	}
}

// resuming is what metrics read of the connections that outlive their links.
type resuming struct{ server *Server }

// Stats is the sum of all clusters'.
func (r resuming) Stats() roam.Stats {
	stats := r.server.own.ends.Stats()
	if t := r.server.tenants; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		stats = stats.Plus(t.past.resumed)
		t.all(func(cl *cluster) { stats = stats.Plus(cl.ends.Stats()) })
	}
	return stats
}

// OnResume has f told of all clusters' pauses.
func (r resuming) OnResume(f func(pause time.Duration)) {
	r.server.own.ends.OnResume(f)
	r.server.paused = f
}

// tenantMetrics shows each tenant to Prometheus. The label tenant has as many
// values as there are folders.
type tenantMetrics struct {
	tenants *tenants
	only    string // the tenant that is shown; "": all are, and how many there are
}

var tenantDescs = struct{ state, agents, clients, open, dials, bytes, refused, refusedDials, held *prometheus.Desc }{
	state:        tenantDesc("tenants", "Number of tenants, by state: serving, stale (its folder cannot be used as it is now; it is served as it was), broken (its peers are refused).", "state"),
	agents:       tenantDesc("tenant_agents", "Number of connected agents, by tenant.", "tenant"),
	clients:      tenantDesc("tenant_clients", "Number of linked clients, by tenant.", "tenant"),
	open:         tenantDesc("tenant_connections", "Number of established connections, by tenant.", "tenant"),
	dials:        tenantDesc("tenant_dials_total", "Count of requested connections, by tenant and outcome: ok or failed.", "tenant", "outcome"),
	bytes:        tenantDesc("tenant_forwarded_bytes_total", "Count of payload bytes carried, by tenant and direction.", "tenant", "direction"),
	refused:      tenantDesc("tenant_agent_refusals_total", "Count of agents refused, by tenant.", "tenant"),
	refusedDials: tenantDesc("tenant_bound_refusals_total", "Count of requested connections that were refused by a bound, by tenant.", "tenant"),
	held:         tenantDesc("tenant_bandwidth_wait_seconds_total", "Seconds that connections have waited for bounds.mbitPerSecond, all together, by tenant and direction.", "tenant", "direction"),
}

func tenantDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metrics.Prefix+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (m tenantMetrics) Describe(out chan<- *prometheus.Desc) {
	d := tenantDescs
	for _, desc := range []*prometheus.Desc{d.state, d.agents, d.clients, d.open, d.dials, d.bytes, d.refused, d.refusedDials, d.held} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (m tenantMetrics) Collect(out chan<- prometheus.Metric) {
	if m.only != "" {
		if cl := m.tenants.cluster(m.only); cl != nil {
			cl.collect(out)
		}
		return
	}
	states := m.tenants.states()
	for _, state := range []string{tenancy.StateServing, tenancy.StateStale, tenancy.StateBroken} {
		out <- prometheus.MustNewConstMetric(tenantDescs.state, prometheus.GaugeValue, float64(states[state]), state)
	}
	var clusters []*cluster
	m.tenants.each(func(cl *cluster) { clusters = append(clusters, cl) })
	for _, cl := range clusters {
		cl.collect(out)
	}
}

// collect makes the labels itself, once for all series that have the same: the
// checks of MustNewConstMetric are for labels that may be wrong, and cost half of
// a scrape of a thousand tenants.
func (cl *cluster) collect(out chan<- prometheus.Metric) {
	t := &cl.traffic
	own := &dto.LabelPair{Name: &labelTenant, Value: &cl.name}
	plain := []*dto.LabelPair{own}
	gauge := func(d *prometheus.Desc, n int) {
		out <- &sample{desc: d, kind: prometheus.GaugeValue, value: float64(n), labels: plain}
	}
	count := func(d *prometheus.Desc, n int64, labels ...*dto.LabelPair) {
		out <- &sample{desc: d, kind: prometheus.CounterValue, value: float64(n), labels: append(labels, own)}
	}
	gauge(tenantDescs.agents, cl.agents.Counts().Agents)
	gauge(tenantDescs.clients, len(cl.peers.clients()))
	gauge(tenantDescs.open, int(t.open()))
	count(tenantDescs.dials, t.dialed.Load(), labelOK)
	count(tenantDescs.dials, t.failed.Load(), labelFailed)
	count(tenantDescs.bytes, t.totals.Up.Load(), labelUp)
	count(tenantDescs.bytes, t.totals.Down.Load(), labelDown)
	count(tenantDescs.refused, t.refused.Load())
	count(tenantDescs.refusedDials, t.bound.Load())
	held := func(p *tunnel.Pace, direction string) {
		out <- prometheus.MustNewConstMetric(tenantDescs.held, prometheus.CounterValue, p.Held().Seconds(), cl.name, direction)
	}
	held(&cl.paces.Up, "to_destination")
	held(&cl.paces.Down, "to_client")
}

// Labels that all tenants' series share. A series has them sorted by name.
var (
	labelTenant = "tenant"
	labelOK     = pair("outcome", "ok")
	labelFailed = pair("outcome", "failed")
	labelUp     = pair("direction", "to_destination")
	labelDown   = pair("direction", "to_client")
)

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// sample is one series at one moment. Its labels are shared with others.
type sample struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	value  float64
	labels []*dto.LabelPair
}

// Desc implements prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *sample) Write(m *dto.Metric) error {
	m.Label = s.labels
	if s.kind == prometheus.GaugeValue {
		m.Gauge = &dto.Gauge{Value: &s.value}
		return nil
	}
	m.Counter = &dto.Counter{Value: &s.value}
	return nil
}
