package agent

import (
	"testing"
	"time"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
)

// What is called for each packet, and for each connection while nobody reads
// debug lines.
func TestMetricsAllocateNothing(t *testing.T) {
	m := mustMetrics(t)
	flow := &tunnel.Flow{Request: tunnel.Request{ID: "id", Front: "link", Network: "tcp", Address: "a:1"}}
	for name, f := range map[string]func(){
		"packet":         func() { m.Packet(legacy.ToAgent, client.PacketType_DATA) },
		"unknown packet": func() { m.Packet(legacy.ToAgent, legacy.NoPacket) },
		"full":           func() { m.Full(legacy.ToAgent, 1); m.Full(legacy.ToAgent, -1) },
		"bytes":          func() { m.totals.Up.Add(1) },
		"dialed":         func() { m.Dialed(flow, time.Millisecond, nil) },
		"opened":         func() { m.Opened(flow) },
		"closed":         func() { m.Closed(flow, time.Second, nil) },
	} {
		t.Run(name, func(t *testing.T) { testutil.MaxAllocs(t, 0, f) })
	}
}
