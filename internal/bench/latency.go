package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/tunnel"
)

// messageSize is the small message whose round trip is measured.
const messageSize = 64

// Latency is the distribution of times that dials or round trips took.
type Latency struct {
	Count    int
	P50, P99 time.Duration
}

// Distribution returns the distribution of times, which it sorts.
func Distribution(took []time.Duration) Latency {
	if len(took) == 0 {
		return Latency{}
	}
	slices.Sort(took)
	return Latency{Count: len(took), P50: took[len(took)/2], P99: took[len(took)*99/100]}
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
	return Distribution(took), nil
}

func ping(c tunnel.Conn) error {
	var message [messageSize]byte
	if _, err := c.Write(message[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, message[:])
	return err
}

// RoundTripBeside measures round trips beside so many downloads, which have run for
// the time ahead when the round trips begin.
func (p Path) RoundTripBeside(ctx context.Context, streams int, ahead, length time.Duration) (Latency, error) {
	t, err := p.Begin(ctx, Down, streams, Endless)
	if err != nil {
		return Latency{}, err
	}
	defer t.Stop()
	if err := pause(t.ctx, ahead); err != nil {
		return Latency{}, err
	}
	return p.RoundTrip(ctx, length)
}

// Churn opens a connection, has 64 bytes echoed and closes it, over and over,
// with that many dialers at once. It returns connections per second.
func (p Path) Churn(ctx context.Context, dialers int, length time.Duration) (float64, error) {
	running, live := errgroup.WithContext(ctx)
	var count atomic.Int64
	start := time.Now()
	for range dialers {
		running.Go(func() error {
			for first := true; live.Err() == nil && (first || time.Since(start) < length); first = false {
				if err := p.touch(live); err != nil {
					return err
				}
				count.Add(1)
			}
			return nil
		})
	}
	if err := cmp.Or(running.Wait(), context.Cause(ctx)); err != nil {
		return 0, fmt.Errorf("connections over %s: %w", p.Name, err)
	}
	return float64(count.Load()) / time.Since(start).Seconds(), nil
}

// FirstByte opens so many connections, one after the other, and returns the time
// from each dial to the first byte of an answer.
func (p Path) FirstByte(ctx context.Context, times int) (Latency, error) {
	var took []time.Duration
	for range times {
		start := time.Now()
		if err := p.touch(ctx); err != nil {
			return Latency{}, fmt.Errorf("first byte over %s: %w", p.Name, err)
		}
		took = append(took, time.Since(start))
	}
	return Distribution(took), nil
}

// touch makes one short connection.
func (p Path) touch(ctx context.Context) error {
	c, err := p.open(ctx, "echo")
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dialTime))
	return ping(c)
}
