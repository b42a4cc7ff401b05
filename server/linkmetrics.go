package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/admin"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
)

// What native links mean to upstream's metrics, so that its dashboards show the
// same whatever peers speak.

// linked registers what links have a part in, and asks them at each scrape.
func (m *metrics) linked(sent *prometheus.CounterVec, full *prometheus.GaugeVec) {
	m.make.Add(
		observe.Feed(sent, func(tell func(observe.Adder, float64)) {
			toAgent, fromAgent := legacy.LinkPackets(m.links.Sum(admin.RoleAgent), true)
			fromClient, toClient := legacy.LinkPackets(m.links.Sum(admin.RoleClient), false)
			for segment, counts := range map[legacy.Segment]map[client.PacketType]uint64{
				legacy.ToAgent: toAgent, legacy.FromAgent: fromAgent, legacy.FromClient: fromClient, legacy.ToClient: toClient,
			} {
				for kind, n := range counts {
					tell(m.packets[segment][kind], float64(n))
				}
			}
		}),
		observe.Feed(full, func(tell func(observe.Adder, float64)) {
			tell(m.full[legacy.FromAgent], float64(m.links.Sum(admin.RoleAgent).Stalled))
			tell(m.full[legacy.FromClient], float64(m.links.Sum(admin.RoleClient).Stalled))
		}))
}

// agentLink is told +1 and -1 as an agent's link begins and ends: it stands for
// the stream of the method Connect that older agents have.
func (m *metrics) agentLink(delta int) { m.Stream("Connect", delta) }

// agentLinkLost counts an agent's link that did not end in order.
func (m *metrics) agentLinkLost() {
	m.StreamError(legacy.FromAgent, codes.Unavailable, legacy.NoPacket)
}

// countRequests counts next's requests as HTTP connections: without a link, a
// sidecar makes a CONNECT of each.
func (m *metrics) countRequests(next tunnel.Handler) tunnel.Handler {
	return tunnel.HandlerFunc(func(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
		m.HTTPConnection(1)
		f.AtEnd(func() { m.HTTPConnection(-1) })
		next.Serve(ctx, f, answer, ended)
	})
}
