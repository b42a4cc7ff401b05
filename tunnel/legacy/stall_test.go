package legacy

import (
	"io"
	"testing"
	"time"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

func flood(c io.Writer) error {
	block := pattern(64 << 10)
	for {
		if _, err := c.Write(block); err != nil {
			return err
		}
	}
}

// Fifty that stall at once still leave the budget kept.
func TestManyStalledKeepToTheBudget(t *testing.T) {
	const budget, buffer = 8 << 20, 32 << 10
	r := newRig(t, Limits{connBuffer: buffer, stallTimeout: time.Minute, Budget: shares.NewBudget(budget)})
	a := r.rawAgent(t)
	var conns []tunnel.Conn
	for i := range 50 {
		conns = append(conns, a.accept(t.Context(), int64(i+1)))
	}
	go func() { // nobody reads what comes back
		for a.RecvMsg(&client.Packet{}) == nil {
		}
	}()
	block := pattern(16 << 10)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range 50 { // 40 MB, five times what fits
			for i := range conns {
				if a.SendMsg(dataPacket(int64(i+1), block)) != nil {
					return
				}
			}
		}
		_ = a.SendMsg(drain())
	}()
	most := int64(0)
	for drained := false; !drained; {
		select {
		case <-a.peer.Drains().Done():
			drained = true
		case <-a.peer.Ends().Done():
			t.Fatalf("the stream ended: %v", a.peer.Err())
		case <-time.After(time.Millisecond):
		}
		most = max(most, r.limits.Budget.Used())
	}
	<-sent
	testutil.AtMost(t, most, budget+50*2*buffer, "bytes that were held")
	stalled := int64(0)
	for _, c := range conns {
		if tunnel.CodeOf(c.Failed()) == tunnel.CodeStalled {
			stalled++
		}
		_ = c.Reset(nil)
	}
	testutil.AtLeast(t, stalled, 1, "connections that were reset for it, as far more came than fits")
	testutil.AtLeast(t, r.metrics.stalled.Load(), stalled, "connections that are counted, each before its reset")
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/security.md"
	testutil.Says(t, page, "%v KiB for each connection by gRPC", defaultConnBuffer>>10)
	testutil.Says(t, page, "unread bytes of gRPC connections together: %v MiB", DefaultBudget>>20)
	testutil.Says(t, page, "one that asks for no connection ends after %v s", int64(firstDial/time.Second))
}
