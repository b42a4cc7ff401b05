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
//	count    the target reads until FIN, and sends how much it has read so far, each time
//	         as a line: now and then, and at the end; then FIN
//	echo     the target sends back all that it reads
//	name     the target sends its name as a line, and then does as for echo
const (
	commandTime = 30 * time.Second // a client that is silent at first is not ours
	maxCommand  = 64
	blockSize   = 64 << 10
)

// ServeTarget serves l until ctx ends or l fails, and returns as Accept does.
func ServeTarget(ctx context.Context, l net.Listener) error {
	return Accept(ctx, l, func(c net.Conn) { _ = Serve(tunnel.Wrap(c), "") })
}

// StartTarget serves a free port of loopback until stop is called, which returns why it has
// ended before, if it has.
func StartTarget(ctx context.Context) (address string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- ServeTarget(ctx, l) }()
	return l.Addr().String(), func() error { cancel(); return <-ended }, nil
}

// Accept calls serve for every connection of l, each on a goroutine, until ctx ends or l fails,
// also in a shortage of descriptors, which would pass for a slow path. It then closes l and all
// connections, waits for every serve, and returns nil or the error of l. Each connection is
// closed when serve returns.
func Accept(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			defer c.Close()
			serve(c)
		})
	}
}

// Serve serves one connection to a target of that name. The caller closes it.
func Serve(c net.Conn, name string) error {
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
	case "count":
		return count(c, r)
	case "name":
		if _, err := fmt.Fprintln(c, name); err != nil {
			return err
		}
		return echo(c, r)
	case "echo":
		return echo(c, r)
	default:
		return errors.New("unknown command")
	}
}

// countInterval is the time between two counts: short enough to see a transfer's
// beginning, long enough to cost nothing.
const countInterval = 10 * time.Millisecond

// count reads until FIN, and sends the count so far at most once a countInterval.
func count(c io.Writer, r io.Reader) error {
	buf := make([]byte, blockSize)
	total, sent := int64(0), time.Now()
	for {
		n, err := r.Read(buf)
		total += int64(n)
		if now := time.Now(); err != nil || now.Sub(sent) >= countInterval {
			sent = now
			if _, werr := fmt.Fprintf(c, "%d\n", total); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
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
