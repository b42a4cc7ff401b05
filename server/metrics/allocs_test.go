package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/legacy"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// Counting packets and bytes allocates nothing. Counting a connection may.
func TestDataPathAllocatesNothing(t *testing.T) {
	m := New(prometheus.NewRegistry())
	for name, f := range map[string]func(){
		"packet":         func() { m.Packet(legacy.FromAgent, client.PacketType_DATA) },
		"unknown-packet": func() { m.Packet(legacy.FromAgent, legacy.NoPacket) },
		"frontend-write": func() { m.FrontendWrite(time.Millisecond) },
		"full":           func() { m.Full(legacy.FromAgent, 1); m.Full(legacy.FromAgent, -1) },
		"bytes":          func() { m.Totals.Up.Add(1) },
	} {
		t.Run(name, func(t *testing.T) { testutil.MaxAllocs(t, 0, f) })
	}
}
