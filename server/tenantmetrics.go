package server

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"konnectivity/server/limits"
	"konnectivity/server/tenant"
)

// What is shown of each tenant to Prometheus. The label tenant has as many values
// as there are folders. There may be thousands, and a registry checks and sorts
// each of their series at each scrape, so these are made beside it, in order and
// a family at a time.

// tenantFamily is a metric with series for each tenant.
type tenantFamily struct {
	name, help string
	kind       dto.MetricType
	series     []tenantSeries
}

// tenantSeries is one of a tenant's. Labels are sorted by name: its own comes
// before that of the tenant.
type tenantSeries struct {
	label *dto.LabelPair // nil: none of its own
	value func(*cluster) float64
}

const (
	gauge   = dto.MetricType_GAUGE
	counter = dto.MetricType_COUNTER
)

var tenantFamilies = []tenantFamily{
	{"tenant_agents", "Number of connected agents, by tenant.", gauge, one(func(cl *cluster) float64 { return float64(cl.agents.Counts().Agents) })},
	{"tenant_clients", "Number of linked clients, by tenant.", gauge, one(func(cl *cluster) float64 { return float64(len(cl.peers.clients())) })},
	{"tenant_connections", "Number of established connections, by tenant.", gauge, one(func(cl *cluster) float64 { return float64(cl.traffic.open()) })},
	{"tenant_dials_total", "Count of requested connections, by tenant and outcome: ok or failed.", counter, []tenantSeries{
		{pair("outcome", "ok"), func(cl *cluster) float64 { return float64(cl.traffic.dialed.Load()) }},
		{pair("outcome", "failed"), func(cl *cluster) float64 { return float64(cl.traffic.failed.Load()) }},
	}},
	{"tenant_forwarded_bytes_total", "Count of payload bytes carried, by tenant and direction.", counter, directions(
		func(cl *cluster) float64 { return float64(cl.traffic.totals.Up.Load()) },
		func(cl *cluster) float64 { return float64(cl.traffic.totals.Down.Load()) })},
	{"tenant_agent_refusals_total", "Count of agents refused, by tenant.", counter, one(func(cl *cluster) float64 { return float64(cl.traffic.refused.Load()) })},
	{"tenant_bound_refusals_total", "Count of requested connections that were refused by a bound, by tenant and bound.", counter, byBound()},
	{"tenant_certificate_expiry_timestamp_seconds", "When the first certificate of a tenant's files expires, in seconds since 1970.", gauge, one(func(cl *cluster) float64 {
		return float64(cl.spec().Expiries[0].Until.Unix())
	})},
	{"tenant_certificate_lifetime_seconds", "For how many seconds that certificate is valid in all.", gauge, one(func(cl *cluster) float64 {
		first := cl.spec().Expiries[0]
		return first.Until.Sub(first.From).Seconds()
	})},
	{"tenant_bandwidth_wait_seconds_total", "Seconds that connections, taken together, have waited for bounds.mbitPerSecond, by tenant and direction.", counter, directions(
		func(cl *cluster) float64 { return cl.limits.Paces.Up.Held().Seconds() },
		func(cl *cluster) float64 { return cl.limits.Paces.Down.Held().Seconds() })},
}

func one(value func(*cluster) float64) []tenantSeries { return []tenantSeries{{nil, value}} }

func byBound() (all []tenantSeries) {
	for b := range limits.Bound(limits.BoundKinds) {
		all = append(all, tenantSeries{pair("bound", b.String()), func(cl *cluster) float64 { return float64(cl.traffic.bounds[b].Load()) }})
	}
	return all
}

func directions(up, down func(*cluster) float64) []tenantSeries {
	return []tenantSeries{{pair("direction", "to_destination"), up}, {pair("direction", "to_client"), down}}
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// gatherer is all that is shown to Prometheus.
func (s *Server) gatherer() prometheus.Gatherer {
	if s.opts.Tenants == nil {
		return s.opts.Registry
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := s.opts.Registry.Gather()
		all = append(all, s.tenants.stateFamily())
		all = append(all, familiesOf(s.tenants.clusters())...)
		slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
		return all, err
	})
}

// gathererOf returns the metrics of one tenant.
func (s *Server) gathererOf(tenant string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		if cl := s.tenants.now.Load().cluster(tenant); cl != nil {
			return familiesOf([]*cluster{cl}), nil
		}
		return nil, nil
	})
}

// stateFamily is how many tenants there are.
func (t *tenants) stateFamily() *dto.MetricFamily {
	f := newFamily("tenants", "Number of tenants, by state: serving, stale (its folder cannot be used as it is now; it is served as it was), broken (its peers are refused).", gauge)
	states := t.states()
	for _, state := range []string{tenant.StateBroken, tenant.StateServing, tenant.StateStale} {
		n := float64(states[state])
		f.Metric = append(f.Metric, &dto.Metric{Label: []*dto.LabelPair{pair("state", state)}, Gauge: &dto.Gauge{Value: &n}})
	}
	return f
}

func newFamily(name, help string, kind dto.MetricType) *dto.MetricFamily {
	name = MetricsPrefix + name
	return &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
}

// familiesOf makes the series of some tenants.
func familiesOf(clusters []*cluster) []*dto.MetricFamily {
	if len(clusters) == 0 {
		return nil // a family has one series at least
	}
	label := "tenant"
	labels := make([]dto.LabelPair, len(clusters))
	for i, cl := range clusters {
		labels[i].Name, labels[i].Value = &label, &cl.name
	}
	all := make([]*dto.MetricFamily, len(tenantFamilies))
	for i := range tenantFamilies {
		all[i] = tenantFamilies[i].of(clusters, labels)
	}
	if lists := listsFamily(clusters); len(lists.Metric) > 0 {
		all = append(all, lists)
	}
	return all
}

// listsFamily is when revocation lists are to be replaced, of the tenants that have any.
func listsFamily(clusters []*cluster) *dto.MetricFamily {
	f := newFamily("tenant_revocations_expiry_timestamp_seconds", "When the first revocation list of a tenant is to be replaced, in seconds since 1970.", gauge)
	for _, cl := range clusters {
		if until := cl.spec().ListsUntil(); !until.IsZero() {
			at := float64(until.Unix())
			f.Metric = append(f.Metric, &dto.Metric{Label: []*dto.LabelPair{pair("tenant", cl.name)}, Gauge: &dto.Gauge{Value: &at}})
		}
	}
	return f
}

// of makes the series of one metric, all at once: one by one they would be some
// fifty thousand pieces of memory.
func (f *tenantFamily) of(clusters []*cluster, labels []dto.LabelPair) *dto.MetricFamily {
	n := len(clusters) * len(f.series)
	all := newFamily(f.name, f.help, f.kind)
	all.Metric = make([]*dto.Metric, 0, n)
	made := make([]dto.Metric, n)
	pairs := make([]*dto.LabelPair, 0, 2*n)
	values, gauges, counters := make([]float64, n), []dto.Gauge(nil), []dto.Counter(nil)
	if f.kind == gauge {
		gauges = make([]dto.Gauge, n)
	} else {
		counters = make([]dto.Counter, n)
	}
	for _, series := range f.series {
		for i, cl := range clusters {
			at := len(all.Metric)
			m, value, first := &made[at], &values[at], len(pairs)
			if series.label != nil {
				pairs = append(pairs, series.label)
			}
			pairs = append(pairs, &labels[i])
			m.Label, *value = pairs[first:], series.value(cl)
			if f.kind == gauge {
				gauges[at].Value, m.Gauge = value, &gauges[at]
			} else {
				counters[at].Value, m.Counter = value, &counters[at]
			}
			all.Metric = append(all.Metric, m)
		}
	}
	return all
}
