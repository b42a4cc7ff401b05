package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// openers is how many connections are opened at the same time.
const openers = 64

// held is a connection that was checked and stays open.
type held struct {
	conn tunnel.Conn
	of   *cluster
}

// errCrossed is the worst there is: bytes of one cluster came to another.
var errCrossed = errors.New("a connection reached another cluster")

// open dials in a cluster and sees that its own greeter answers.
func (c *cluster) open(ctx context.Context) (_ tunnel.Conn, took time.Duration, err error) {
	begin := time.Now()
	conn, err := c.client.dial(ctx, destination)
	if err != nil {
		return nil, 0, err
	}
	took = time.Since(begin)
	_ = conn.SetDeadline(time.Now().Add(roundTime))
	line, err := bufio.NewReaderSize(conn, 64).ReadString('\n')
	if err == nil && line != c.name+"\n" {
		err = fmt.Errorf("%w: %s was answered by %q", errCrossed, c.name, line)
	}
	if err == nil {
		err = echo(conn, c.name)
	}
	if err != nil {
		_ = conn.Close()
		return nil, 0, err
	}
	return conn, took, nil
}

// echo sends text and wants it back.
func echo(conn tunnel.Conn, text string) error {
	_ = conn.SetDeadline(time.Now().Add(roundTime))
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("%w: sent %q, got %q", errCrossed, text, got)
	}
	return nil
}

// hold opens n connections over all clusters in turn.
func (s *swarm) hold(ctx context.Context, n int) ([]held, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *cluster)
	var mu sync.Mutex
	var all []held
	var opening sync.WaitGroup
	for range min(n, openers) {
		opening.Go(func() {
			for c := range next {
				conn, _, err := c.open(ctx)
				if err != nil {
					cancel(fmt.Errorf("open a connection of %s: %w", c.name, err))
					continue
				}
				mu.Lock()
				all = append(all, held{conn, c})
				mu.Unlock()
			}
		})
	}
	for i := range n {
		if ctx.Err() == nil {
			next <- s.clusters[i%len(s.clusters)]
		}
	}
	close(next)
	opening.Wait()
	return all, context.Cause(ctx)
}

// outcome is what became of dials.
type outcome struct {
	mu     sync.Mutex
	took   []time.Duration
	failed int
	err    error // of the last that failed
}

// add notes a dial.
func (o *outcome) add(took time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.failed, o.err = o.failed+1, err
		return
	}
	o.took = append(o.took, took)
}

// take is what was noted since the last time.
func (o *outcome) take() (took []time.Duration, failed int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	took, failed, err = o.took, o.failed, o.err
	o.took, o.failed, o.err = nil, 0, nil
	return took, failed, err
}

// churn makes rate connections a second to clusters at random, uses and closes
// each, and stops after period.
func (s *swarm) churn(ctx context.Context, rate int, period time.Duration) *outcome {
	o := new(outcome)
	var dials sync.WaitGroup
	defer dials.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for end := time.Now().Add(period); time.Now().Before(end) && ctx.Err() == nil; {
		<-tick.C
		c := s.clusters[rand.IntN(len(s.clusters))]
		dials.Go(func() {
			conn, took, err := c.open(ctx)
			if err == nil {
				_ = conn.Close()
			}
			o.add(took, err)
		})
	}
	return o
}

// percentile is the share-th of the times, which it sorts.
func percentile(times []time.Duration, share float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(len(times)-1, int(share*float64(len(times))))]
}
