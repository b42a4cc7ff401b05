package link_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Segments that only acknowledge count, too: the peer's kernel sends them without its process.
func TestAcknowledgementsAreReceived(t *testing.T) {
	r := tcpRig(t, true, link.Config{})
	before := r.ses.Line().Received
	r.ses.Probe()
	testutil.Eventually(t, "a segment has come", func() bool { return r.ses.Line().Received != before })
}

// A peer that is silent after a dial is found dead in time for the dial to be made by another
// link, where connections outlive theirs and the operator allows no longer silence.
func TestDialsDoubtASilentPeer(t *testing.T) {
	const pause = 100 * time.Millisecond
	for name, c := range map[string]struct {
		hello  link.Hello
		dead   time.Duration // DeadAfter
		asked  bool          // the peer has made the link
		speaks bool          // the peer sends something now and then, and answers no PING
		ends   time.Duration // after which the link ends
	}{
		"silent":                     {resumes, 0, false, false, 7 * time.Second},
		"speaks":                     {resumes, 0, false, true, 0},
		"may be silent for longer":   {resumes, time.Minute, false, false, 0},
		"nothing outlives this link": {link.Hello{}, 0, false, false, 15 * time.Second},
		"the peer has made the link": {resumes, 0, true, false, 15 * time.Second},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			near, far := net.Pipe()
			r := newRig(t, link.Buffered(near), far, !c.asked, link.Config{Hello: c.hello, DeadAfter: c.dead})
			_ = far.SetDeadline(time.Time{})
			go discard(far)
			over := make(chan struct{})
			var speaking sync.WaitGroup
			if c.speaks {
				speaking.Go(func() {
					for r.sendQuietly(frame{tInfo, 0, 0, nil}) {
						time.Sleep(pause)
					}
				})
			}
			began := time.Now()
			go func() {
				defer close(over)
				_, err := r.ses.Dial(context.Background(), tunnel.NewFlow("tcp", "x:1"))
				testutil.Fails(t, err, "a dial by a link that ends")
			}()
			select {
			case <-over:
				testutil.Between(t, time.Since(began), c.ends, c.ends+link.DefaultPingInterval, "the time that the dial took")
			case <-time.After(25 * time.Second):
				testutil.Equal(t, c.ends, 0, "when the link is to end, which lives")
			}
			_, _ = far.Close(), r.ses.Close()
			<-over
			speaking.Wait()
		})
	}
}
