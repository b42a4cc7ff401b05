package hostile

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// flood keeps connections to one address open for as long as it lasts: one that
// the other end closes is opened again after a moment.
type flood struct {
	address string
	from    []string       // local addresses, taken in turn; empty: any
	count   int            // connections at once
	attack  func(net.Conn) // what each does once it is open; nil: nothing

	opened, open atomic.Int64
}

// again is how long a connection that was closed waits before it comes back.
const again = 500 * time.Millisecond

// start begins the flood; stop ends it and waits for its end.
func (f *flood) start(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	for i := range f.count {
		conns.Go(func() {
			for ctx.Err() == nil {
				f.connect(ctx, i)
				pace(ctx, again)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); conns.Wait() })
	t.Cleanup(stop)
	return stop
}

// connect is one connection's life.
func (f *flood) connect(ctx context.Context, i int) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if len(f.from) > 0 {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(f.from[i%len(f.from)])}
	}
	c, err := dialer.DialContext(ctx, "tcp", f.address)
	if err != nil {
		return
	}
	f.opened.Add(1)
	f.open.Add(1)
	defer f.open.Add(-1)
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0) // leaves no TIME_WAIT behind, which would use up the ports
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if f.attack != nil {
		f.attack(c)
	}
	_, _ = io.Copy(io.Discard, c)
}
