package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
)

// segmentSize and inFlight bound what the long wire holds: 256 MiB, more than
// 50 ms of any speed this can reach.
const (
	segmentSize = 256 << 10
	inFlight    = 1024
)

// longWire carries connections from l to address, each byte delay later, as a
// link to a far region does.
func longWire(ctx context.Context, l net.Listener, address string, delay time.Duration) {
	_ = bench.Accept(ctx, l, func(near net.Conn) {
		far, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() { delayed(far, near, delay) })
		wg.Go(func() { delayed(near, far, delay) })
		wg.Wait()
	})
}

type segment struct {
	data *[segmentSize]byte
	size int
	due  time.Time
}

var segmentData = sync.Pool{New: func() any { return new([segmentSize]byte) }}

// delayed copies src to dst until either ends, then closes both.
func delayed(dst, src net.Conn, delay time.Duration) {
	segments := make(chan segment, inFlight)
	go func() {
		defer close(segments)
		for {
			data := segmentData.Get().(*[segmentSize]byte)
			n, err := src.Read(data[:])
			segments <- segment{data, n, time.Now().Add(delay)}
			if err != nil {
				return
			}
		}
	}()
	for s := range segments {
		time.Sleep(time.Until(s.due))
		if _, err := dst.Write(s.data[:s.size]); err != nil {
			_ = src.Close() // ends the reader, which closes segments
		}
		segmentData.Put(s.data)
	}
	_ = dst.Close()
	_ = src.Close()
}

// measureLong measures one stream whose agent is 50 ms away.
func (o options) measureLong(ctx context.Context, bin suite.Binaries, rep *bench.Report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := start(bin)
	if err != nil {
		return err
	}
	defer w.close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go longWire(ctx, l, suite.Loopback(w.server.AgentPort), 25*time.Millisecond)
	w.agent.Kill()
	if w.agent, err = w.StartAgent(w.server, fmt.Sprintf("--proxy-server-port=%d", l.Addr().(*net.TCPAddr).Port)); err != nil {
		return err
	}
	target, stop, err := bench.StartTarget(ctx)
	if err != nil {
		return err
	}
	defer stop()
	ours := w.subject("ours", target)
	for range o.plan.Runs {
		for _, d := range []bench.Direction{bench.Down, bench.Up} {
			got, err := ours.Bulk(ctx, d, 1, o.plan.Size)
			if err != nil {
				return err
			}
			rep.Add("ours", fmt.Sprintf("agent 50 ms away: %s, 1 stream", d), "MB/s", got.MBps())
		}
	}
	return nil
}
