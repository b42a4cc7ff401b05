package observe

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

type session struct{ now link.Stats }

func (s *session) Stats() link.Stats { return s.now }

func TestLinkMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	l := NewLinks("x_link_", "agent", "client")
	reg.MustRegister(l)
	a := &session{link.Stats{Streams: 2, Sent: 10, Received: 20, Unread: 3, Opened: 4, Accepted: 1, Resets: 1, RTT: time.Second, Stalled: 1, LargestWindow: 100, Lanes: 2, Lost: link.Losses{tunnel.LossCut: 1, tunnel.LossLocal: 1}}}
	b := &session{link.Stats{Streams: 1, Sent: 1, Received: 2, Unread: 4, Opened: 2, Resets: 2, RTT: 2 * time.Second, LargestWindow: 50, Lanes: 1, Lost: link.Losses{tunnel.LossCut: 1, tunnel.LossSilent: 1}}}
	l.Add("agent", a)
	l.Add("agent", b)
	want := func(page string) {
		t.Helper()
		testutil.Equal(t, samples(t, reg, page), page, "metrics")
	}
	want(`x_link_lanes{peer="agent"} 3
x_link_lanes{peer="client"} 0
x_link_round_trip_max_seconds{peer="agent"} 2
x_link_round_trip_max_seconds{peer="client"} 0
x_link_sessions{peer="agent"} 2
x_link_sessions{peer="client"} 0
x_link_stalled_streams{peer="agent"} 1
x_link_stalled_streams{peer="client"} 0
x_link_unread_bytes{peer="agent"} 7
x_link_unread_bytes{peer="client"} 0
x_link_window_max_bytes{peer="agent"} 100
x_link_window_max_bytes{peer="client"} 0
`)
	counters := `x_link_lost_total{cause="closed",peer="agent"} 0
x_link_lost_total{cause="closed",peer="client"} 0
x_link_lost_total{cause="cut",peer="agent"} 2
x_link_lost_total{cause="cut",peer="client"} 0
x_link_lost_total{cause="replaced",peer="agent"} 0
x_link_lost_total{cause="replaced",peer="client"} 0
x_link_lost_total{cause="silent",peer="agent"} 1
x_link_lost_total{cause="silent",peer="client"} 0
x_link_lost_total{cause="violated",peer="agent"} 0
x_link_lost_total{cause="violated",peer="client"} 0
x_link_opened_streams_total{peer="agent"} 7
x_link_opened_streams_total{peer="client"} 0
x_link_sent_bytes_total{peer="agent"} 11
x_link_sent_bytes_total{peer="client"} 0
x_link_stream_resets_total{peer="agent"} 3
x_link_stream_resets_total{peer="client"} 0
`
	want(counters)
	// Counters outlive their links, gauges do not.
	l.Remove("agent", a)
	l.Remove("agent", a)
	l.Remove("agent", b)
	want(counters)
	want(`x_link_sessions{peer="agent"} 0
x_link_sessions{peer="client"} 0
x_link_streams{peer="agent"} 0
x_link_streams{peer="client"} 0
`)
	testutil.Equal(t, len(testutil.Must(promtest.GatherAndLint(reg))(t)), 0, "problems of metrics")
}

// samples are the lines of a scrape about the metrics of a page, without what explains them.
func samples(t *testing.T, g prometheus.Gatherer, page string) string {
	t.Helper()
	var all strings.Builder
	for _, f := range testutil.Must(g.Gather())(t) {
		if regexp.MustCompile(`(?m)^` + f.GetName() + `[{ ]`).MatchString(page) {
			testutil.Must(expfmt.MetricFamilyToText(&all, f))(t)
		}
	}
	return regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(all.String(), "")
}
