package e2e

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

const (
	workers = 80 // transfers at once
	probes  = 8  // connections on which one byte goes to and fro

	// lossTime is when what stands still counts as lost: longer than any window.
	lossTime = 2 * time.Minute
)

// storm is load by some ways to a vault, while harm is done to what carries it.
type storm struct {
	t      testing.TB
	kinds  []byte
	ways   []tunnel.Dialer
	vault  *vault
	life   time.Duration // of a transfer, at most
	size   int64         // the same
	on     atomic.Bool   // whoever is done begins again
	began  time.Time
	over   atomic.Bool
	load   sync.WaitGroup
	probed sync.WaitGroup
	closed chan struct{} // probes end

	lose func(address string) // is called with the client's address of each lost connection; may be nil
	fail func()               // is called when a row of failed dials begins; may be nil

	done, lost, dialed, refused, bytes atomic.Int64

	mu     sync.Mutex
	harms  []time.Time
	waits  [probes][]wait
	failed []failures
}

// failures are a row of dials that failed for one reason, with less than rowGap between two.
type failures struct {
	why         string
	n           int
	first, last time.Time
}

const rowGap = 5 * time.Second

// wait is a byte's way to the vault and back.
type wait struct {
	from time.Time
	took time.Duration
}

// startStorm begins load and returns once all of it is connected. In CI each
// worker makes one transfer: a dial that is struck leaves its connection with the
// agent for a window, which is not waited for.
func startStorm(t testing.TB, v *vault, life time.Duration, kinds []byte, ways ...tunnel.Dialer) *storm {
	t.Helper()
	s := &storm{t: t, kinds: kinds, ways: ways, vault: v, life: life, size: scaled[int64](16<<20, 256<<20),
		began: time.Now(), closed: make(chan struct{})}
	s.on.Store(scaled(false, true))
	var first sync.WaitGroup
	for i := range workers {
		first.Add(1)
		s.load.Go(func() { s.transfers(i, sync.OnceFunc(first.Done)) })
	}
	for i := range probes {
		first.Add(1)
		s.probed.Go(func() { s.probe(i, sync.OnceFunc(first.Done)) })
	}
	first.Wait()
	return s
}

// orders are of sizes that spread evenly over the orders of magnitude; the
// largest is among each round's.
func (s *storm) order(i, round int) order {
	exponent := float64((i*7+round*13)%workers) / (workers - 1)
	return order{
		Kind: s.kinds[i%len(s.kinds)],
		Seed: uint8(i + round),
		Size: int64(1024 * math.Pow(float64(s.size)/1024, exponent)),
		Life: s.life/4 + rand.N(s.life*3/4),
	}
}

// transfers makes one after the other until the storm is over.
func (s *storm) transfers(i int, connected func()) {
	defer connected()
	for round := 0; round == 0 || s.on.Load() && !s.over.Load(); round++ {
		c := s.dial(i + round)
		connected()
		if c == nil {
			return
		}
		o := s.order(i, round)
		at := time.Now()
		if err := transfer(patient{c}, o, len(s.kinds) == len(halves)); err != nil {
			s.lost.Add(1)
			if s.lose != nil {
				s.lose(c.LocalAddr().String())
			}
			s.t.Errorf("transfer %c of %d bytes, begun %v into the storm, failed %v later: %v",
				o.Kind, o.Size, at.Sub(s.began).Round(time.Millisecond), time.Since(at).Round(time.Millisecond), err)
		}
		_ = c.Close()
		s.done.Add(1)
		s.bytes.Add(o.Size)
	}
}

// patient is a connection that may stand still for lossTime.
type patient struct{ tunnel.Conn }

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(lossTime))
	return p.Conn.Read(b)
}

func (p patient) Write(b []byte) (int, error) {
	_ = p.SetWriteDeadline(time.Now().Add(lossTime))
	return p.Conn.Write(b)
}

// dial tries until it succeeds: what is not connected yet does not outlive
// anything. nil means that the storm was over before.
func (s *storm) dial(i int) tunnel.Conn {
	for end := time.Now().Add(lossTime); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		c, err := s.ways[i%len(s.ways)].Dial(ctx, tunnel.NewFlow("tcp", s.vault.address))
		cancel()
		s.dialed.Add(1)
		if err == nil {
			return c
		}
		s.refused.Add(1)
		s.why(err)
		switch {
		case s.over.Load():
			return nil
		case time.Now().After(end):
			s.t.Errorf("no dial for %v: %v", lossTime, err)
			return nil
		}
	}
}

// probe sends a byte to and fro until the storm is over.
func (s *storm) probe(i int, connected func()) {
	defer connected()
	c := s.dial(i)
	connected()
	if c == nil {
		return
	}
	defer c.Close()
	err := order{Kind: echoes}.send(c)
	for p := make([]byte, 1); err == nil; {
		select {
		case <-s.closed:
			return
		case <-time.After(5 * time.Millisecond):
		}
		from := time.Now()
		_ = c.SetDeadline(from.Add(lossTime))
		if _, err = c.Write(p); err != nil {
			break
		}
		if _, err = c.Read(p); err == nil {
			s.waited(i, wait{from, time.Since(from)})
		}
	}
	s.lost.Add(1)
	s.t.Errorf("probe %d: %v", i, err)
}

// why notes the reason of a dial that failed.
func (s *storm) why(err error) {
	if s.begins(err.Error(), time.Now()) && s.fail != nil {
		s.fail()
	}
}

// begins counts a failed dial, and says whether a row begins with it.
func (s *storm) begins(why string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.failed {
		if f := &s.failed[i]; f.why == why && at.Sub(f.last) < rowGap {
			f.n, f.last = f.n+1, at
			return false
		}
	}
	s.failed = append(s.failed, failures{why, 1, at, at})
	return true
}

func (s *storm) waited(probe int, w wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[probe] = append(s.waits[probe], w)
}

// harm notes that something is done to what carries connections. A machine that is too busy
// to mend one harm before the next gets on first: else harms that follow one another would
// outlast the window.
func (s *storm) harm() {
	for i, end := 0, time.Now().Add(lossTime); i < probes; i++ {
		for s.lags(i) && time.Now().Before(end) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.harms = append(s.harms, time.Now())
}

// lagTime is after what time without progress a harm waits for some. It is longer than
// any pause on a machine that is not busy, and much shorter than any window.
const lagTime = 5 * time.Second

// lags says whether a probe that is not lost has had no byte back for some time.
func (s *storm) lags(probe int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.began
	if waits := s.waits[probe]; len(waits) > 0 {
		last = waits[len(waits)-1].from.Add(waits[len(waits)-1].took)
	}
	return time.Since(last) > lagTime && !s.over.Load() && s.lost.Load() == 0
}

// end lets what has begun come to its end, and tells what became of it.
func (s *storm) end() {
	s.t.Helper()
	s.over.Store(true)
	s.load.Wait()
	close(s.closed)
	s.probed.Wait()
	s.t.Logf("%d transfers and %d probes, %d MiB, in %v: %d lost; of %d dials %d failed",
		s.done.Load(), probes, s.bytes.Load()>>20, time.Since(s.began).Round(time.Millisecond), s.lost.Load(), s.dialed.Load(), s.refused.Load())
	for _, f := range s.failed {
		s.t.Logf("%d dials, from %v to %v: %s", f.n, f.first.Sub(s.began).Round(time.Millisecond), f.last.Sub(s.began).Round(time.Millisecond), f.why)
	}
	testutil.Equal(s.t, s.vault.failed.Load(), 0, "transfers that failed at the vault")
	if p := s.pauses(); len(p) > 0 {
		s.t.Logf("%d harms, which struck %d times one of the probes: pauses p50 %v, p99 %v, at most %v",
			len(s.harms), len(p), at(p, 0.50), at(p, 0.99), p[len(p)-1])
	}
}

// soonAfter is within what time a harm is felt.
const soonAfter = 300 * time.Millisecond

// pauses are the longest waits that each probe had for each harm, of bytes that
// were under way then or set out soon after. What is as quick as ever was not
// struck.
func (s *storm) pauses() (all []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var usual []time.Duration
	for _, waits := range s.waits {
		for _, w := range waits {
			usual = append(usual, w.took)
		}
	}
	slices.Sort(usual)
	for _, waits := range s.waits {
		for _, h := range s.harms {
			longest := time.Duration(0)
			for _, w := range waits {
				if w.from.Before(h.Add(soonAfter)) && w.from.Add(w.took).After(h) {
					longest = max(longest, w.took)
				}
			}
			if longest > at(usual, 0.9) {
				all = append(all, longest.Round(time.Millisecond))
			}
		}
	}
	slices.Sort(all)
	return all
}

// at is a quantile of what is sorted.
func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
