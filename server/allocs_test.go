package server

import (
	"io"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
)

// What is called for each connection while nobody reads debug lines.
func TestObserversAllocateNothing(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	flow := &tunnel.Flow{Request: tunnel.Request{ID: "id", Front: "link", Network: "tcp", Address: "a:1"}}
	for name, o := range map[string]tunnel.Observer{
		"log": connectionLog{log.WithField("component", "server")}, "metrics": newMetrics(prometheus.NewRegistry(), noDials),
	} {
		t.Run(name, func(t *testing.T) {
			testutil.MaxAllocs(t, 0, func() {
				o.Dialed(flow, time.Millisecond, nil)
				o.Opened(flow)
				o.Closed(flow, time.Second, nil)
			})
		})
	}
}

// Counting packets and bytes allocates nothing. Counting a connection may.
func TestDataPathAllocatesNothing(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), noDials)
	for name, f := range map[string]func(){
		"packet":         func() { m.Packet(legacy.FromAgent, client.PacketType_DATA) },
		"unknown-packet": func() { m.Packet(legacy.FromAgent, legacy.NoPacket) },
		"frontend-write": func() { m.FrontendWrite(time.Millisecond) },
		"full":           func() { m.Full(legacy.FromAgent, 1); m.Full(legacy.FromAgent, -1) },
		"bytes":          func() { m.totals.Up.Add(1) },
	} {
		t.Run(name, func(t *testing.T) { testutil.MaxAllocs(t, 0, f) })
	}
}
