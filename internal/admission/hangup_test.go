package admission

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// halfPipe is an end of a net.Pipe, whose direction to the client can be ended alone.
type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

// Whoever has an answer in the middle of an upload may send the rest of it, without a
// pause and not for ever.
func TestDrainEnds(t *testing.T) {
	for pause, want := range map[time.Duration]time.Duration{
		0:                     uploadTime,
		partingTime * 9 / 10:  uploadTime,
		partingTime * 11 / 10: partingTime,
		100 * uploadTime:      partingTime,
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			var sending sync.WaitGroup
			sending.Go(func() {
				defer far.Close()
				for {
					time.Sleep(max(pause, time.Millisecond))
					if _, err := far.Write(make([]byte, 100)); err != nil {
						return
					}
				}
			})
			began := time.Now()
			Drain(tunnel.Wrap(halfPipe{near}))
			testutil.Equal(t, time.Since(began), want, "with pauses of %v it is read for", pause)
			_ = near.Close()
			sending.Wait()
		})
	}
}
