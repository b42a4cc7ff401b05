package observe

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/tunnel/link"
)

// Adder is a counter or a gauge.
type Adder interface{ Add(float64) }

// Fed is a metric of the packet protocol that links share in. What they amount
// to is asked when somebody scrapes, so that it costs them nothing meanwhile.
type Fed struct {
	prometheus.Collector // the metric, of which the packet protocol feeds its part

	ask func(tell func(to Adder, total float64))

	mu   sync.Mutex
	told map[Adder]float64
}

// Feed makes a collector of metric. ask is called at each scrape and tells what
// links amount to by then, for each child that they have a part in.
func Feed(metric prometheus.Collector, ask func(tell func(to Adder, total float64))) *Fed {
	return &Fed{Collector: metric, ask: ask, told: make(map[Adder]float64)}
}

// Collect implements prometheus.Collector.
func (f *Fed) Collect(out chan<- prometheus.Metric) {
	f.mu.Lock()
	f.ask(func(to Adder, total float64) {
		to.Add(total - f.told[to])
		f.told[to] = total
	})
	f.mu.Unlock()
	f.Collector.Collect(out)
}

// Packets are the figures of links as packets of the old protocol, those that
// the opener of the streams sent and those that the other side did. A frame of
// data is a packet; an established stream that is over was asked to close and
// has answered, whoever ended it.
func Packets(s link.Stats, opener bool) (asked, answered map[client.PacketType]uint64) {
	there, back, opened := s.DataReceived, s.DataSent, s.Accepted
	if opener {
		there, back, opened = back, there, s.Opened
	}
	asked = map[client.PacketType]uint64{client.PacketType_DIAL_REQ: opened, client.PacketType_DATA: there, client.PacketType_CLOSE_REQ: s.Ended}
	answered = map[client.PacketType]uint64{client.PacketType_DIAL_RSP: s.Answered, client.PacketType_DATA: back, client.PacketType_CLOSE_RSP: s.Ended}
	return asked, answered
}
