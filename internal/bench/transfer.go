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
	"sync/atomic"
	"time"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// Direction is which way a transfer goes.
type Direction string

const (
	Down Direction = "download"
	Up   Direction = "upload"
)

const (
	// Endless is the size of a transfer that ends only when it is stopped.
	Endless = 1 << 50

	// firstBytes is what the beginning of a transfer is judged by.
	firstBytes = 10_000_000
)

// Transfer is a bulk transfer that is under way, over several connections at once.
type Transfer struct {
	direction Direction
	size      int64           // of each connection
	dialed    time.Duration   // what the dials took
	start     time.Time       // once they were done
	ctx       context.Context // ends with the transfer; its cause is the first failure
	cancel    context.CancelCauseFunc
	running   sync.WaitGroup

	total   atomic.Int64 // bytes that have arrived
	begun   sync.Once
	reached chan struct{} // closed when firstBytes have arrived
	first   time.Duration // until then; valid once reached is closed
}

// errStopped ends a transfer that has no end.
var errStopped = errors.New("the transfer was stopped")

// Begin opens the connections, and then begins to carry size bytes over each. Stop
// must follow; the transfer also ends with ctx.
func (p Path) Begin(ctx context.Context, d Direction, streams int, size int64) (*Transfer, error) {
	t := &Transfer{direction: d, size: size, reached: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	conns, dialing := make([]tunnel.Conn, 0, streams), time.Now()
	for range streams {
		c, err := p.dial(t.ctx)
		if err != nil {
			for _, c := range conns {
				_ = c.Close()
			}
			t.cancel(err)
			return nil, fmt.Errorf("%s over %s: %w", d, p.Name, err)
		}
		conns = append(conns, c)
	}
	t.start = time.Now()
	t.dialed = t.start.Sub(dialing)
	for _, c := range conns {
		t.running.Go(func() {
			if err := t.carry(c); err != nil {
				t.cancel(fmt.Errorf("%s over %s: %w", d, p.Name, err))
			}
		})
	}
	return t, nil
}

// carry moves the bytes of one connection, which it closes.
func (t *Transfer) carry(c tunnel.Conn) error {
	defer c.Close()
	defer context.AfterFunc(t.ctx, func() { _ = c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled}) })()
	got, err := int64(0), error(nil)
	if t.direction == Up {
		got, err = t.upload(c)
	} else {
		got, err = t.download(c)
	}
	if err == nil && got != t.size {
		err = fmt.Errorf("%d of %d bytes have arrived: %w", got, t.size, io.ErrUnexpectedEOF)
	}
	return err
}

func (t *Transfer) download(c tunnel.Conn) (got int64, err error) {
	if _, err := fmt.Fprintf(c, "down %d\n", t.size); err != nil {
		return 0, err
	}
	for buf := make([]byte, blockSize); ; {
		n, err := c.Read(buf)
		got += int64(n)
		t.arrived(int64(n))
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// upload sends, half-closes, and reads the target's counts until it has counted all.
func (t *Transfer) upload(c tunnel.Conn) (got int64, err error) {
	if _, err := io.WriteString(c, "count\n"); err != nil {
		return 0, err
	}
	var sending sync.WaitGroup
	defer func() { _ = c.Close(); sending.Wait() }()
	sending.Go(func() {
		if sendBlocks(c, t.size) == nil {
			_ = c.CloseWrite()
		}
	})
	for counts := bufio.NewReader(c); ; {
		line, err := counts.ReadString('\n')
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return got, err
		}
		t.arrived(n - got)
		got = n
	}
}

func (t *Transfer) arrived(n int64) {
	if t.total.Add(n) >= firstBytes {
		t.begun.Do(func() {
			t.first = time.Since(t.start)
			close(t.reached)
		})
	}
}

// Bytes returns how many bytes have arrived so far.
func (t *Transfer) Bytes() int64 { return t.total.Load() }

// wait returns when all bytes have arrived, or why they did not.
func (t *Transfer) wait() error {
	t.running.Wait()
	return context.Cause(t.ctx)
}

// Stop ends the transfer, and returns when its connections are closed.
func (t *Transfer) Stop() {
	t.cancel(errStopped)
	t.running.Wait()
}

// Throughput is the result of a transfer of a known size.
type Throughput struct {
	Bytes int64
	Took  time.Duration
}

// MBps returns the throughput in 10^6 bytes per second.
func (t Throughput) MBps() float64 { return float64(t.Bytes) / 1e6 / t.Took.Seconds() }

// Bulk carries size bytes over each of streams connections at once. The dials are
// not part of the time that it takes.
func (p Path) Bulk(ctx context.Context, d Direction, streams int, size int64) (Throughput, error) {
	t, err := p.Begin(ctx, d, streams, size)
	if err != nil {
		return Throughput{}, err
	}
	defer t.Stop()
	err = t.wait()
	return Throughput{Bytes: t.Bytes(), Took: time.Since(t.start)}, err
}

const (
	// rampTime is how long a transfer has to reach its speed.
	rampTime = time.Second

	// firstLimit bounds the wait for the first bytes on a line that is slow.
	firstLimit = 20 * time.Second
)

// Steady is a part of an endless transfer.
type Steady struct {
	Dialed time.Duration // what the dials took
	First  time.Duration // from then on until 10 MB had arrived, over all streams
	MBps   float64       // from the second second on
}

// Steady measures an endless transfer for the given time, and for longer if the
// first 10 MB take longer.
func (p Path) Steady(ctx context.Context, d Direction, streams int, length time.Duration) (Steady, error) {
	t, err := p.Begin(ctx, d, streams, Endless)
	if err != nil {
		return Steady{}, err
	}
	defer t.Stop()
	if err := pause(t.ctx, rampTime); err != nil {
		return Steady{}, err
	}
	before, from := t.Bytes(), time.Now()
	if err := pause(t.ctx, length-rampTime); err != nil {
		return Steady{}, err
	}
	after, until := t.Bytes(), time.Now()
	select {
	case <-t.reached:
	case <-time.After(firstLimit):
		return Steady{}, fmt.Errorf("the first %d bytes take longer than %v", firstBytes, firstLimit)
	case <-t.ctx.Done():
		return Steady{}, context.Cause(t.ctx)
	}
	return Steady{Dialed: t.dialed, First: t.first, MBps: float64(after-before) / 1e6 / until.Sub(from).Seconds()}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if !wait.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
