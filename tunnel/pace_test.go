package tunnel_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// paced is a relay in memory, and its outer ends.
type paced struct {
	client, target net.Conn
	flow           *tunnel.Flow
	over           chan error
	cut            context.CancelCauseFunc
}

func startPaced(t *testing.T, paces *tunnel.Paces) *paced {
	client, a := net.Pipe()
	b, target := net.Pipe()
	ctx, cut := context.WithCancelCause(t.Context())
	p := &paced{client, target, new(tunnel.Flow), make(chan error, 1), cut}
	relay := &tunnel.Relay{A: tunnel.Wrap(a), B: tunnel.Wrap(b), Flow: p.flow, Paces: paces}
	go func() { p.over <- relay.Run(ctx) }()
	return p
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func (p *paced) end() {
	p.client.Close()
	p.target.Close()
	<-p.over
	p.cut(nil)
}

// All that share a pace have its rate together and equal parts of it, each
// direction by itself.
func TestPacesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, seconds, each = 1_000_000, 20, 4
		var paces tunnel.Paces
		paces.Up.Set(rate)
		paces.Down.Set(rate / 2)
		var all []*paced
		var floods sync.WaitGroup
		for range each {
			p := startPaced(t, &paces)
			for _, c := range []net.Conn{p.client, p.target} { // as fast as it goes, both ways
				floods.Go(func() { _, _ = io.Copy(c, endless{}) })
				floods.Go(func() { _, _ = io.Copy(io.Discard, c) })
			}
			all = append(all, p)
		}
		time.Sleep(seconds * time.Second)
		var up, down int64
		for _, p := range all {
			u, d := p.flow.Sent()
			testutil.AtLeast(t, u, rate*seconds/each*8/10, "bytes up of one of %d", each)
			testutil.AtLeast(t, d, rate*seconds/each/2*8/10, "bytes down of one of %d", each)
			up, down = up+u, down+d
		}
		testutil.AtMost(t, up, rate*(seconds+1), "bytes up in %d s", seconds)
		testutil.AtMost(t, down, rate*(seconds+1)/2, "bytes down in %d s", seconds)
		testutil.AtLeast(t, paces.Up.Held(), seconds*time.Second, "time that they have waited for")
		for _, p := range all {
			p.end()
		}
		floods.Wait()
	})
}

// crowd has n relays that share paces send upward as fast as they go, so many bytes
// at a time.
func crowd(t *testing.T, paces *tunnel.Paces, n, size int) (all []*paced, end func()) {
	var floods sync.WaitGroup
	for range n {
		p := startPaced(t, paces)
		all = append(all, p)
		floods.Go(func() {
			for buf := make([]byte, size); ; {
				if _, err := p.client.Write(buf); err != nil {
					return
				}
			}
		})
		floods.Go(func() { _, _ = io.Copy(io.Discard, p.target) })
	}
	return all, func() {
		for _, p := range all {
			p.end()
		}
		floods.Wait()
	}
}

// up is what some have carried upward.
func up(of []*paced) (sum int64) {
	for _, p := range of {
		n, _ := p.flow.Sent()
		sum += n
	}
	return sum
}

// Who sends little does not wait behind many that send all they can.
func TestSmallChunksGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, times, most = 1_000_000, 5, 200 * time.Millisecond
		var paces tunnel.Paces
		paces.Up.Set(rate)
		_, end := crowd(t, &paces, 50, tunnel.ChunkSize) // 3 s of the rate at a time
		typist := startPaced(t, &paces)
		time.Sleep(5 * time.Second)
		for range times {
			began := time.Now()
			sent := testutil.Later(func() error { return testutil.Err(typist.client.Write(make([]byte, 100))) })
			testutil.Must(io.ReadFull(typist.target, make([]byte, 100)))(t)
			testutil.NoError(t, <-sent)
			testutil.AtMost(t, time.Since(began), most, "time that 100 bytes took")
			time.Sleep(time.Second)
		}
		typist.end()
		end()
	})
}

// Many small pieces have half of the rate while larger ones want more, and all have
// no more than the rate.
func TestLargeChunksHaveHalfTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, seconds = 1_000_000, 30
		var paces tunnel.Paces
		paces.Up.Set(rate)
		large, endLarge := crowd(t, &paces, 2, tunnel.ChunkSize)
		small, endSmall := crowd(t, &paces, 50, 4<<10)
		time.Sleep(time.Second)
		hadLarge, hadSmall := up(large), up(small)
		time.Sleep(seconds * time.Second)
		l, s := up(large)-hadLarge, up(small)-hadSmall
		part := float64(l) / float64(l+s)
		testutil.Holds(t, part >= 0.4 && part <= 0.6, "large pieces have a fair part, %.2f", part)
		testutil.Between(t, l+s, rate*(seconds-1), rate*(seconds+1), "bytes in %d s", seconds)
		endLarge()
		endSmall()
	})
}

// Another rate holds for what waits already, and none lets all pass.
func TestPaceRateChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var paces tunnel.Paces
		paces.Up.Set(1000)
		p := startPaced(t, &paces)
		var all sync.WaitGroup
		all.Go(func() { _, _ = io.Copy(p.client, io.LimitReader(endless{}, 300_000_000)) })
		all.Go(func() { _, _ = io.Copy(io.Discard, p.target) })
		time.Sleep(10 * time.Second)
		up, _ := p.flow.Sent()
		testutil.AtMost(t, up, 150_000, "bytes in 10 s at 1,000 a second")
		paces.Up.Set(1_000_000)
		time.Sleep(2 * time.Second) // what waits had a minute to go at the old rate
		before, _ := p.flow.Sent()
		time.Sleep(10 * time.Second)
		after, _ := p.flow.Sent()
		testutil.Between(t, after-before, 9_000_000, 11_000_000, "bytes in 10 s at 1,000,000 a second")
		paces.Up.Set(0)
		time.Sleep(time.Second)
		up, _ = p.flow.Sent()
		testutil.Equal(t, up, 300_000_000, "bytes that have passed")
		p.end()
		all.Wait()
	})
}

// Whoever waits is not forgotten when its connection is cut.
func TestPaceReleasesCutConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var paces tunnel.Paces
		paces.Up.Set(1)
		p := startPaced(t, &paces)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = io.Copy(p.client, endless{})
		}()
		go func() { _, _ = io.Copy(io.Discard, p.target) }()
		time.Sleep(5 * time.Second) // what it waits for takes hours
		began := time.Now()
		p.cut(&tunnel.ResetError{Code: tunnel.CodeShutdown})
		testutil.Equal(t, tunnel.CodeOf(<-p.over), tunnel.CodeShutdown, "how the relay ended")
		testutil.AtMost(t, time.Since(began), time.Second, "time that it took")
		<-gone
		paces.Up.Set(100_000)
		cut, end := crowd(t, &paces, 20, 64<<10) // each waits with a second's bytes or more
		time.Sleep(time.Second)
		for _, c := range cut {
			c.cut(&tunnel.ResetError{Code: tunnel.CodeShutdown})
		}
		end()
		left, end := crowd(t, &paces, 1, 64<<10)
		time.Sleep(10 * time.Second)
		testutil.AtLeast(t, up(left), 500_000, "bytes in 10 s, which others no longer wait with")
		end()
	})
}
