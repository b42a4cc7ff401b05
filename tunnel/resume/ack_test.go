package resume_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// overheard is a carrier that tells of what its end asks of it.
type overheard struct {
	*link.Stream
	acknowledges func(link.Ack) // nil: of that it does not
	watches      func(link.Watcher)
}

// by makes one of what a dial has returned.
func (o overheard) by(c tunnel.Conn, err error) (tunnel.Conn, error) {
	if err != nil {
		return nil, err
	}
	o.Stream = c.(*link.Stream)
	return &o, nil
}

func (o *overheard) Acknowledge(a link.Ack) {
	if o.acknowledges != nil {
		o.acknowledges(a)
	}
	o.Stream.Acknowledge(a)
}

func (o *overheard) Watch(w link.Watcher) *link.Ack {
	if o.watches != nil {
		o.watches(w)
	}
	return o.Stream.Watch(w)
}

// download is a connection on r, whose opener counts what it acknowledges.
func (r *route) download() (c tunnel.Conn, dest *wireEnd, acks *atomic.Int64) {
	r.t.Helper()
	acks = new(atomic.Int64)
	c, err := r.opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		return overheard{acknowledges: func(link.Ack) { acks.Add(1) }}.by(r.world.Dial(ctx, f))
	})).Dial(context.Background(), tunnel.NewFlow("tcp", "dest:1"))
	testutil.NoError(r.t, err)
	return c, <-r.dests, acks
}

// reads takes so many times 64 KiB out of c, one a millisecond, and returns for how
// long.
func reads(t *testing.T, c tunnel.Conn, steps int) time.Duration {
	t.Helper()
	began, p := time.Now(), make([]byte, 64<<10)
	for range steps {
		testutil.Must(io.ReadFull(c, p))(t)
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// An end that keeps much is acknowledged less often, and does not wait for that. It
// says so on each carrier.
func TestAcknowledgementsOfBulk(t *testing.T) {
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		c, dest, acks := r.download()
		defer c.Close()
		go func() { _, _ = io.Copy(dest, zeroes{}) }()
		for range 2 {
			reads(t, c, 200)
			before := acks.Load()
			testutil.AtMost(t, reads(t, c, 400), 450*time.Millisecond, "the time of 400 times 64 KiB")
			testutil.AtMost(t, acks.Load()-before, 130, "their acknowledgements")
			r.relink(toOpener)
		}
	})
}

// An end that keeps less again, because memory has become scarce, does not wait for
// the other one to fall silent.
func TestAcknowledgementsWhileMemoryIsScarce(t *testing.T) {
	const steps, scarce = 200, memory - 500<<10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		c, dest, _ := r.download()
		defer c.Close()
		for range 2 {
			go func() { _, _ = io.CopyN(dest, zeroes{}, steps*64<<10) }()
			testutil.AtMost(t, reads(t, c, steps), (steps+50)*time.Millisecond, "time that it took")
			time.Sleep(500 * time.Millisecond)
			r.memory.Hold(scarce)
			defer r.memory.Hold(-scarce)
		}
	})
}

// zeroes is a reader of these.
type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }
