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

// flood sends and reads as fast as it goes, both ways.
func (p *paced) flood(of *sync.WaitGroup) {
	for _, c := range []net.Conn{p.client, p.target} {
		of.Go(func() { _, _ = io.Copy(c, endless{}) })
		of.Go(func() { _, _ = io.Copy(io.Discard, c) })
	}
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
			p.flood(&floods)
			all = append(all, p)
		}
		time.Sleep(seconds * time.Second)
		var up, down int64
		for _, p := range all {
			u, d := p.flow.Sent()
			if u < rate*seconds/each*8/10 || d < rate*seconds/each/2*8/10 {
				t.Errorf("one of %d has carried %d bytes up and %d down in %d s", each, u, d, seconds)
			}
			up, down = up+u, down+d
		}
		if up > rate*(seconds+1) || down > rate*(seconds+1)/2 {
			t.Errorf("%d bytes up and %d down in %d s at %d a second", up, down, seconds, rate)
		}
		if paces.Up.Held() < seconds*time.Second {
			t.Errorf("%d have waited for %v in all", each, paces.Up.Held())
		}
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
			sent := make(chan error, 1)
			go func() {
				_, err := typist.client.Write(make([]byte, 100))
				sent <- err
			}()
			testutil.Must(io.ReadFull(typist.target, make([]byte, 100)))(t)
			testutil.NoError(t, <-sent)
			if took := time.Since(began); took > most {
				t.Errorf("100 bytes took %v", took)
			}
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
		if part := float64(l) / float64(l+s); part < 0.4 || part > 0.6 {
			t.Errorf("large pieces have %.0f %%: %d bytes beside %d", 100*part, l, s)
		}
		if sum := l + s; sum > rate*(seconds+1) || sum < rate*(seconds-1) {
			t.Errorf("%d bytes in %d s at %d a second", sum, seconds, rate)
		}
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
		if up, _ := p.flow.Sent(); up > 150_000 {
			t.Errorf("%d bytes in 10 s at 1,000 a second", up)
		}
		paces.Up.Set(1_000_000)
		time.Sleep(2 * time.Minute) // behind what had begun to wait
		before, _ := p.flow.Sent()
		time.Sleep(10 * time.Second)
		after, _ := p.flow.Sent()
		if n := after - before; n < 9_000_000 || n > 11_000_000 {
			t.Errorf("%d bytes in 10 s at 1,000,000 a second", n)
		}
		paces.Up.Set(0)
		time.Sleep(time.Second)
		if up, _ := p.flow.Sent(); up != 300_000_000 {
			t.Errorf("%d bytes of 300,000,000 have passed", up)
		}
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
		if err := <-p.over; tunnel.CodeOf(err) != tunnel.CodeShutdown {
			t.Errorf("the relay ended with %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		<-gone
	})
}
