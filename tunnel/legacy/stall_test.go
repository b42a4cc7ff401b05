package legacy

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// One connection never reads what floods it. A hundred others on the same
// agent go on, at the latest once the stalled one is reset, new dials succeed,
// and memory stays within the budget.
func TestStalledConnectionDoesNotBlockOthers(t *testing.T) {
	t.Parallel() // it waits
	t.Run("client never reads", func(t *testing.T) { t.Parallel(); stalledBesideActive(t, false) })
	t.Run("target never reads", func(t *testing.T) { t.Parallel(); stalledBesideActive(t, true) })
}

func stalledBesideActive(t *testing.T, upload bool) {
	const budget = 16 << 20
	r := newRig(t, Limits{stallTimeout: 2 * time.Second, Budget: shares.NewBudget(budget)})
	p, _ := r.agent(true)
	release := make(chan struct{})
	defer close(release)
	stalled := dial(t, p, target(t, func(c *net.TCPConn) {
		if upload {
			<-release // reads nothing
			return
		}
		flood(c)
	}))
	_ = stalled.SetDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() {
		if upload {
			ended <- flood(stalled)
			return
		}
		eventually(t, "the stalled connection is reset", func() bool { return r.metrics.stalled.Load() > 0 })
		_, err := io.Copy(io.Discard, stalled) // the reset comes right after it was counted
		ended <- err
	}()

	addr := target(t, echo)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer end()
	var rounds, most atomic.Int64
	for range 100 {
		c := dial(t, p, addr)
		wg.Go(func() {
			for n, last := 0, false; n < 10 || !last; n++ {
				select {
				case <-stop:
					last = true
				default:
				}
				if err := pingPong(c); err != nil {
					t.Errorf("an active connection: %v", err)
					return
				}
				rounds.Add(1)
				most.Store(max(most.Load(), r.limits.Budget.Used()))
			}
		})
	}
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c, err := p.Dial(ctx, tunnel.NewFlow("tcp", addr))
		cancel()
		testutil.NoError(t, err)
		_ = c.Close()
	}
	err := testutil.Receive(t, "the stalled connection's end", ended)
	testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodeStalled, "how the stalled connection ended: %v", err)
	end()
	testutil.AtMost(t, most.Load(), budget+100*sendWindow, "bytes that were held")
	t.Logf("%d round trips, at most %d KiB held", rounds.Load(), most.Load()>>10)
}

func flood(c io.Writer) error {
	block := pattern(64 << 10)
	for {
		if _, err := c.Write(block); err != nil {
			return err
		}
	}
}

func pingPong(c tunnel.Conn) error {
	buf := make([]byte, 512)
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf)
	return err
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
		case <-a.peer.Life().Done():
			t.Fatalf("the stream ended: %v", a.peer.Err())
		case <-time.After(time.Millisecond):
		}
		most = max(most, r.limits.Budget.Used())
	}
	<-sent
	testutil.AtMost(t, most, budget+50*2*buffer, "bytes that were held")
	testutil.AtLeast(t, r.metrics.stalled.Load(), 1, "resets, as far more came than fits")
	for _, c := range conns {
		_ = c.Reset(nil)
	}
}
