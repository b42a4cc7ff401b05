package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// Path is what is measured: a way to a target.
type Path struct {
	Name   string
	Dialer tunnel.Dialer
	Target string // host:port, as the far end of the path sees it
}

// dialTime bounds one dial; a path that needs longer is broken.
const dialTime = 30 * time.Second

// open dials the target and sends it a command.
func (p Path) open(ctx context.Context, command string) (tunnel.Conn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := p.Dialer.Dial(dialCtx, tunnel.NewFlow("tcp", p.Target))
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, command+"\n"); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("send %q: %w", command, err)
	}
	return c, nil
}

// Throughput is the result of a bulk transfer.
type Throughput struct {
	Streams int
	Bytes   int64
	Took    time.Duration
}

// MBps returns the throughput in 10^6 bytes per second.
func (t Throughput) MBps() float64 { return float64(t.Bytes) / 1e6 / t.Took.Seconds() }

// Down downloads size bytes over each of streams connections at once.
func (p Path) Down(ctx context.Context, streams int, size int64) (Throughput, error) {
	return p.bulk(ctx, streams, size, fmt.Sprintf("down %d", size), func(c tunnel.Conn) error {
		n, err := io.CopyBuffer(io.Discard, onlyReader{c}, make([]byte, blockSize))
		if err == nil && n != size {
			err = fmt.Errorf("got %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
		}
		return err
	})
}

// Up uploads size bytes over each of streams connections at once, half-closes,
// and has the target confirm the count.
func (p Path) Up(ctx context.Context, streams int, size int64) (Throughput, error) {
	return p.bulk(ctx, streams, size, "up", func(c tunnel.Conn) error {
		if err := sendBlocks(c, size); err != nil {
			return err
		}
		if err := c.CloseWrite(); err != nil {
			return err
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return fmt.Errorf("no count from the target after half-close: %w", err)
		}
		if got := strings.TrimSpace(line); got != fmt.Sprint(size) {
			return fmt.Errorf("the target got %s of %d bytes", got, size)
		}
		return nil
	})
}

// bulk opens all streams first, so that only the transfer is timed.
func (p Path) bulk(ctx context.Context, streams int, size int64, command string, move func(tunnel.Conn) error) (Throughput, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for range streams {
		ready.Add(1)
		done.Go(func() {
			c, err := p.Dialer.Dial(ctx, tunnel.NewFlow("tcp", p.Target))
			ready.Done()
			if err != nil {
				cancel(err)
				return
			}
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			<-start
			if _, err := io.WriteString(c, command+"\n"); err != nil {
				cancel(err)
			} else if err := move(c); err != nil {
				cancel(err)
			}
		})
	}
	ready.Wait()
	from := time.Now()
	close(start)
	done.Wait()
	took := time.Since(from)
	if err := context.Cause(ctx); err != nil {
		return Throughput{}, fmt.Errorf("%s over %s: %w", command, p.Name, err)
	}
	return Throughput{Streams: streams, Bytes: size * int64(streams), Took: took}, nil
}
