package observe

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

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
		if err := promtest.GatherAndCompare(reg, strings.NewReader(page), names(page)...); err != nil {
			t.Error(err)
		}
	}
	want(`
# HELP x_link_sessions Current number of native links, by kind of peer.
# TYPE x_link_sessions gauge
x_link_sessions{peer="agent"} 2
x_link_sessions{peer="client"} 0
# HELP x_link_lanes Current number of TCP connections of native links, one for each link without lanes, by kind of peer.
# TYPE x_link_lanes gauge
x_link_lanes{peer="agent"} 3
x_link_lanes{peer="client"} 0
# HELP x_link_stalled_streams Current number of streams whose window is full of bytes that nobody reads, by kind of peer.
# TYPE x_link_stalled_streams gauge
x_link_stalled_streams{peer="agent"} 1
x_link_stalled_streams{peer="client"} 0
# HELP x_link_window_max_bytes Largest receive window of a stream, by kind of peer.
# TYPE x_link_window_max_bytes gauge
x_link_window_max_bytes{peer="agent"} 100
x_link_window_max_bytes{peer="client"} 0
# HELP x_link_round_trip_max_seconds Longest round trip over a native link, as last measured, by kind of peer.
# TYPE x_link_round_trip_max_seconds gauge
x_link_round_trip_max_seconds{peer="agent"} 2
x_link_round_trip_max_seconds{peer="client"} 0
# HELP x_link_unread_bytes Bytes received on native links that nobody has read yet, by kind of peer.
# TYPE x_link_unread_bytes gauge
x_link_unread_bytes{peer="agent"} 7
x_link_unread_bytes{peer="client"} 0
`)
	counters := `
# HELP x_link_opened_streams_total Count of streams opened on native links by either side, by kind of peer.
# TYPE x_link_opened_streams_total counter
x_link_opened_streams_total{peer="agent"} 7
x_link_opened_streams_total{peer="client"} 0
# HELP x_link_stream_resets_total Count of streams that this side reset because the peer broke the protocol or memory ran short, by kind of peer.
# TYPE x_link_stream_resets_total counter
x_link_stream_resets_total{peer="agent"} 3
x_link_stream_resets_total{peer="client"} 0
# HELP x_link_lost_total Count of TCP connections of native links that were lost, by kind of peer and cause.
# TYPE x_link_lost_total counter
x_link_lost_total{cause="closed",peer="agent"} 0
x_link_lost_total{cause="closed",peer="client"} 0
x_link_lost_total{cause="cut",peer="agent"} 2
x_link_lost_total{cause="cut",peer="client"} 0
x_link_lost_total{cause="replaced",peer="agent"} 0
x_link_lost_total{cause="replaced",peer="client"} 0
x_link_lost_total{cause="silent",peer="agent"} 1
x_link_lost_total{cause="silent",peer="client"} 0
x_link_lost_total{cause="violated",peer="agent"} 0
x_link_lost_total{cause="violated",peer="client"} 0
# HELP x_link_sent_bytes_total Count of payload bytes sent on native links, by kind of peer.
# TYPE x_link_sent_bytes_total counter
x_link_sent_bytes_total{peer="agent"} 11
x_link_sent_bytes_total{peer="client"} 0
`
	want(counters)
	// Counters outlive their links, gauges do not.
	l.Remove("agent", a)
	l.Remove("agent", a)
	l.Remove("agent", b)
	want(counters)
	want(`
# HELP x_link_sessions Current number of native links, by kind of peer.
# TYPE x_link_sessions gauge
x_link_sessions{peer="agent"} 0
x_link_sessions{peer="client"} 0
# HELP x_link_streams Current number of streams on native links, by kind of peer.
# TYPE x_link_streams gauge
x_link_streams{peer="agent"} 0
x_link_streams{peer="client"} 0
`)
}

// names are the metrics of a page.
func names(page string) (all []string) {
	for line := range strings.Lines(page) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "TYPE" {
			all = append(all, f[2])
		}
	}
	return all
}

// The number of series is that of the kinds of peers, whatever connects.
func TestCardinalityIsBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	l := NewLinks("x_link_", "agent")
	reg.MustRegister(l)
	before := testutil.Must(promtest.GatherAndCount(reg))(t)
	for range 1000 {
		l.Add("agent", &session{link.Stats{Streams: 1}})
	}
	if after, err := promtest.GatherAndCount(reg); err != nil || after != before {
		t.Errorf("%d series, %d before: %v", after, before, err)
	}
	if problems, err := promtest.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
