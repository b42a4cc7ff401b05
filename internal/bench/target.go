package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// The target's protocol: a client sends one line, then
//
//	down N   the target sends N bytes and FIN
//	up       the target reads until FIN, sends the count as a line, and FIN
//	count    the target reads until FIN, and sends the count so far as a line
//	         now and then
//	echo     the target sends back whatever comes
const (
	commandTime = 30 * time.Second // a client that is silent at first is not ours
	maxCommand  = 64
	blockSize   = 64 << 10
)

// ServeTarget serves l until ctx ends, then closes what is open and returns
// once every connection has ended.
func ServeTarget(ctx context.Context, l net.Listener) error {
	return Accept(ctx, l, func(c net.Conn) { _ = serve(tunnel.Wrap(c)) })
}

// Accept calls serve for every connection of l, each on a goroutine, until ctx
// ends. It closes l and what is open then, and each connection once it was
// served, and returns when all have been: nil, or why l failed.
func Accept(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			defer c.Close()
			serve(c)
		})
	}
}

func serve(c tunnel.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(commandTime))
	r := bufio.NewReaderSize(c, maxCommand)
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Time{})
	command, arg, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	switch command {
	case "down":
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil {
			return err
		}
		return sendBlocks(c, n)
	case "up":
		n, err := io.CopyBuffer(io.Discard, onlyReader{r}, make([]byte, blockSize))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c, "%d\n", n)
		return err
	case "count":
		return count(c, r)
	case "echo":
		return echo(c, r)
	default:
		return errors.New("unknown command")
	}
}

// countEvery is how often a count is told: often enough to see a transfer's
// beginning, seldom enough to cost nothing.
const countEvery = 10 * time.Millisecond

func count(c io.Writer, r io.Reader) error {
	buf := make([]byte, blockSize)
	total, told := int64(0), time.Time{}
	for {
		n, err := r.Read(buf)
		total += int64(n)
		if now := time.Now(); err != nil || now.Sub(told) >= countEvery {
			told = now
			if _, werr := fmt.Fprintf(c, "%d\n", total); werr != nil {
				return werr
			}
		}
		if err != nil {
			return err
		}
	}
}

// echo copies with a buffer that is small while little arrives: the target's
// memory is not measured, but the target runs on the same machine.
func echo(c io.Writer, r *bufio.Reader) error {
	buf := make([]byte, 512)
	for {
		n, err := r.Read(buf)
		if _, werr := c.Write(buf[:n]); werr != nil {
			return werr
		}
		if err != nil {
			return err
		}
	}
}

func sendBlocks(c io.Writer, n int64) error {
	block := make([]byte, blockSize)
	for n > 0 {
		m, err := c.Write(block[:min(n, blockSize)])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

// onlyReader keeps io.Copy to the buffer it was given.
type onlyReader struct{ io.Reader }
