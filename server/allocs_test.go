package server

import (
	"io"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
	"konnectivity/server/metrics"
	"konnectivity/tunnel"
)

// What is called for each connection while nobody reads debug lines.
func TestObserversAllocateNothing(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	flow := &tunnel.Flow{Request: tunnel.Request{ID: "id", Front: "link", Network: "tcp", Address: "a:1"}}
	for name, o := range map[string]tunnel.Observer{
		"log": connectionLog{log.WithField("component", "server")}, "metrics": metrics.New(prometheus.NewRegistry()),
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
