package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"konnectivity/tunnel"
)

const (
	// rampTime is how long a transfer has to reach its speed.
	rampTime = time.Second

	// firstBytes is what the beginning of a transfer is judged by.
	firstBytes = 10_000_000

	// firstPatience bounds the wait for these on a line that is slow.
	firstPatience = 20 * time.Second
)

// Steady is a transfer without end, as far as it was watched.
type Steady struct {
	First time.Duration // until 10 MB had arrived, over all streams
	MBps  float64       // from the second second on
}

// SteadyDown downloads over so many streams for the given time, and longer if
// the first 10 MB take longer.
func (p Path) SteadyDown(ctx context.Context, streams int, length time.Duration) (Steady, error) {
	return p.steady(ctx, streams, length, fmt.Sprintf("down %d", int64(1)<<50), func(c tunnel.Conn, arrived func(int64)) error {
		buf := make([]byte, blockSize)
		for {
			n, err := c.Read(buf)
			arrived(int64(n))
			if err != nil {
				return err
			}
		}
	})
}

// SteadyUp uploads in the same way. What has arrived, the target tells.
func (p Path) SteadyUp(ctx context.Context, streams int, length time.Duration) (Steady, error) {
	return p.steady(ctx, streams, length, "count", func(c tunnel.Conn, arrived func(int64)) error {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _ = sendBlocks(c, 1<<50) })
		counts := bufio.NewReader(c)
		for before := int64(0); ; {
			line, err := counts.ReadString('\n')
			if err != nil {
				return err
			}
			n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				return err
			}
			arrived(n - before)
			before = n
		}
	})
}

// errEnough ends a transfer that has none.
var errEnough = errors.New("enough was measured")

func (p Path) steady(ctx context.Context, streams int, length time.Duration, command string, move func(tunnel.Conn, func(int64)) error) (Steady, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watch{reached: make(chan struct{})}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(errEnough)
	conns, err := p.dialAll(ctx, streams)
	if err != nil {
		return Steady{}, err
	}
	w.start = time.Now()
	for _, c := range conns {
		wg.Go(func() {
			giveUp := func() { _ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled}) }
			defer giveUp()
			defer context.AfterFunc(ctx, giveUp)()
			_, err := io.WriteString(c, command+"\n")
			if err == nil {
				err = move(c, w.arrived)
			}
			cancel(err) // unless it has ended already
		})
	}
	return w.measure(ctx, length)
}

func (p Path) dialAll(ctx context.Context, n int) ([]tunnel.Conn, error) {
	conns := make([]tunnel.Conn, 0, n)
	for range n {
		c, err := p.Dialer.Dial(ctx, tunnel.NewFlow("tcp", p.Target))
		if err != nil {
			for _, c := range conns {
				_ = c.Close()
			}
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

// watch counts what arrives.
type watch struct {
	start time.Time

	mu      sync.Mutex
	total   int64
	first   time.Duration // when firstBytes had arrived; 0: not yet
	reached chan struct{} // closed then
}

func (w *watch) arrived(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total += n
	if w.first == 0 && w.total >= firstBytes {
		w.first = time.Since(w.start)
		close(w.reached)
	}
}

func (w *watch) now() (total int64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total, time.Now()
}

// measure lets the transfer go on as long as it is to be watched.
func (w *watch) measure(ctx context.Context, length time.Duration) (Steady, error) {
	if err := pause(ctx, rampTime); err != nil {
		return Steady{}, err
	}
	before, from := w.now()
	if err := pause(ctx, length-rampTime); err != nil {
		return Steady{}, err
	}
	after, until := w.now()
	select {
	case <-w.reached:
	case <-time.After(firstPatience):
		return Steady{}, fmt.Errorf("the first %d bytes take longer than %v", firstBytes, firstPatience)
	case <-ctx.Done():
		return Steady{}, context.Cause(ctx)
	}
	return Steady{First: w.first, MBps: float64(after-before) / 1e6 / until.Sub(from).Seconds()}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// FirstByte opens so many connections, one after the other, and returns how
// long each took from its dial to the first byte of an answer.
func (p Path) FirstByte(ctx context.Context, times int) (Latency, error) {
	var took []time.Duration
	for range times {
		start := time.Now()
		if _, err := p.touch(ctx); err != nil {
			return Latency{}, fmt.Errorf("first byte over %s: %w", p.Name, err)
		}
		took = append(took, time.Since(start))
	}
	return distribution(took), nil
}
