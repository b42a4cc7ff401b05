package observe

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// linkSession is the part of a *link.Session that is needed here.
type linkSession interface{ Stats() link.Stats }

// Links is a collector over the native links of a process: sums and extremes
// over all links to one kind of peer, so that the number of series does not grow
// with the number of peers. Its methods may be called from any goroutine. A
// scrape costs one pass over the open streams.
type Links struct {
	prometheus.Collector

	mu    sync.Mutex
	peers map[string]*peer // fixed by NewLinks
}

// peer is the links to one kind of peer.
type peer struct {
	open  map[linkSession]struct{}
	ended link.Stats // counters of links that are gone
}

// sum adds up the links to one kind of peer.
type sum struct {
	link.Stats
	links int
}

// NewLinks returns a collector for links to these kinds of peers (such as
// "agent"), all of which have series from the start. Names begin with prefix,
// such as konnectivity_network_proxy_agent_link_. The caller registers the
// collector.
func NewLinks(prefix string, peers ...string) *Links {
	l := &Links{peers: make(map[string]*peer)}
	for _, name := range peers {
		l.peers[name] = &peer{open: make(map[linkSession]struct{})}
	}
	figures := NewFigures(prefix, l.sums)
	add := func(kind prometheus.ValueType, name, help string, value func(*sum) float64) {
		figures.Add(kind, name, help+", by kind of peer.", func(sums map[string]*sum, tell Tell) {
			for peer, all := range sums {
				tell(value(all), peer)
			}
		}, "peer")
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "sessions", "Current number of native links", func(s *sum) float64 { return float64(s.links) })
	add(gauge, "lanes", "Current number of TCP connections of native links, one for each link without lanes", func(s *sum) float64 { return float64(s.Lanes) })
	add(gauge, "streams", "Current number of streams on native links", func(s *sum) float64 { return float64(s.Streams) })
	add(gauge, "stalled_streams", "Current number of streams whose window is full of bytes that nobody reads", func(s *sum) float64 { return float64(s.Stalled) })
	add(gauge, "unread_bytes", "Bytes received on native links that nobody has read yet", func(s *sum) float64 { return float64(s.Unread) })
	add(gauge, "window_max_bytes", "Largest receive window of a stream", func(s *sum) float64 { return float64(s.LargestWindow) })
	add(gauge, "round_trip_max_seconds", "Longest round trip over a native link, as last measured", func(s *sum) float64 { return s.RTT.Seconds() })
	add(counter, "opened_streams_total", "Count of streams opened on native links by either side", func(s *sum) float64 { return float64(s.Opened + s.Accepted) })
	add(counter, "stream_resets_total", "Count of streams that this side reset because the peer broke the protocol or memory ran short",
		func(s *sum) float64 { return float64(s.Resets) })
	figures.Add(counter, "lost_total", "Count of TCP connections of native links that were lost, by kind of peer and cause.", func(sums map[string]*sum, tell Tell) {
		for peer, all := range sums {
			for cause := range tunnel.LinkLossCauses() {
				tell(float64(all.Lost[cause]), peer, cause.Label())
			}
		}
	}, "peer", "cause")
	add(counter, "sent_bytes_total", "Count of payload bytes sent on native links", func(s *sum) float64 { return float64(s.Sent) })
	add(counter, "received_bytes_total", "Count of payload bytes received on native links", func(s *sum) float64 { return float64(s.Received) })
	l.Collector = figures
	return l
}

// Add includes ses until it is removed. kind must be one that NewLinks was
// given.
func (l *Links) Add(kind string, ses linkSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers[kind].open[ses] = struct{}{}
}

// Remove takes out a link that has ended; its counters stay. A second call is
// harmless.
func (l *Links) Remove(kind string, ses linkSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[kind]
	if _, known := p.open[ses]; known {
		delete(p.open, ses)
		p.ended.Count(ses.Stats())
	}
}

func (p *peer) sum() *sum {
	all := &sum{Stats: p.ended, links: len(p.open)}
	for ses := range p.open {
		all.Stats = all.Plus(ses.Stats())
	}
	return all
}

// Sum returns the figures of all links to one kind of peer; counters are since
// the start.
func (l *Links) Sum(kind string) link.Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peers[kind].sum().Stats
}

// sums are the figures by kind of peer.
func (l *Links) sums() map[string]*sum {
	l.mu.Lock()
	defer l.mu.Unlock()
	sums := make(map[string]*sum, len(l.peers))
	for name, p := range l.peers {
		sums[name] = p.sum()
	}
	return sums
}
