package bench

import (
	"context"
	"fmt"
	"io"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

// messageSize is the small message whose round trip is measured.
const messageSize = 64

// Latency is the distribution of round trips.
type Latency struct {
	Count         int
	P50, P99, Max time.Duration
}

func distribution(took []time.Duration) Latency {
	if len(took) == 0 {
		return Latency{}
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	return Latency{Count: len(took), P50: took[len(took)/2], P99: took[len(took)*99/100], Max: took[len(took)-1]}
}

// RoundTrip sends 64 bytes there and back on one connection, one after the
// other, for the given time.
func (p Path) RoundTrip(ctx context.Context, length time.Duration) (Latency, error) {
	c, err := p.open(ctx, "echo")
	if err != nil {
		return Latency{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	var took []time.Duration
	for start, end := time.Now(), time.Now().Add(length); len(took) == 0 || start.Before(end); start = time.Now() {
		if err := ping(c); err != nil {
			return Latency{}, fmt.Errorf("round trip over %s: %w", p.Name, err)
		}
		took = append(took, time.Since(start))
	}
	return distribution(took), nil
}

func ping(c tunnel.Conn) error {
	var message [messageSize]byte
	if _, err := c.Write(message[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, message[:])
	return err
}

// RoundTripBeside measures round trips while so many downloads run, which begin
// ahead of them.
func (p Path) RoundTripBeside(ctx context.Context, streams int, ahead, length time.Duration) (Latency, error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range streams {
		c, err := p.open(ctx, fmt.Sprintf("down %d", int64(1)<<50))
		if err != nil {
			return Latency{}, err
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Reset(ctx.Err()) })()
			_, _ = io.CopyBuffer(io.Discard, onlyReader{c}, make([]byte, blockSize))
			_ = c.Close()
		})
	}
	select {
	case <-time.After(ahead):
	case <-ctx.Done():
	}
	return p.RoundTrip(ctx, length)
}

// Churn is how fast connections can be opened and closed.
type Churn struct {
	Dialers int
	Count   int64
	Took    time.Duration
	Dial    Latency // of the dials alone
}

// PerSecond returns connections per second.
func (c Churn) PerSecond() float64 { return float64(c.Count) / c.Took.Seconds() }

// Churn opens a connection, has 64 bytes echoed and closes it, over and over,
// with that many dialers at once.
func (p Path) Churn(ctx context.Context, dialers int, length time.Duration) (Churn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var count atomic.Int64
	var mu sync.Mutex
	var all []time.Duration
	start := time.Now()
	var wg sync.WaitGroup
	for range dialers {
		wg.Go(func() {
			var took []time.Duration
			for ctx.Err() == nil && (len(took) == 0 || time.Since(start) < length) {
				t, err := p.touch(ctx)
				if err != nil {
					cancel(err)
					return
				}
				took = append(took, t)
				count.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return Churn{}, fmt.Errorf("connections over %s: %w", p.Name, err)
	}
	return Churn{Dialers: dialers, Count: count.Load(), Took: time.Since(start), Dial: distribution(all)}, nil
}

// touch makes one short connection and returns how long its dial took.
func (p Path) touch(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	c, err := p.open(ctx, "echo")
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dialTime))
	return took, ping(c)
}
