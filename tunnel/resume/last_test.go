package resume_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// route is a world under fake time with one server, linked by wires, and relays at each
// process as the programs have them.
type route struct {
	*world
	*server
	dests chan *wireEnd // what the agent has dialed, as the destination has it
}

// onRoute runs f with a route whose ends wait for so long for a carrier.
func onRoute(t *testing.T, window time.Duration, f func(t *testing.T, r *route)) {
	synctest.Test(t, func(t *testing.T) {
		r := &route{world: &world{t: t, wire: wires}, dests: make(chan *wireEnd, 10)}
		r.serve = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(r.dialDest)}
		r.begin(1, window)
		r.server = r.servers[0]
		f(t, r)
	})
}

func (r *route) dialDest(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
	a, b := newWire()
	r.dests <- b
	return tunnel.Wrap(a), nil
}

// dial makes a connection. Its client is at the other end of a relay, as in a
// sidecar.
func (r *route) dial() (client, dest *wireEnd) {
	r.t.Helper()
	client, near := newWire()
	go func() {
		front := tunnel.Forwarder{Dialer: r.opener.Dialer(r.world)}
		_ = tunnel.Forward(context.Background(), &front, tunnel.NewFlow("tcp", "dest:1"), func(tunnel.Conn, error) (tunnel.Conn, error) {
			return tunnel.Wrap(near), nil
		})
	}()
	return client, <-r.dests
}

// takes expects all of size bytes and the end, within bound.
func takes(t *testing.T, c *wireEnd, size int, bound time.Duration) {
	t.Helper()
	began := time.Now()
	_ = c.SetReadDeadline(began.Add(bound))
	n, err := io.Copy(io.Discard, c)
	testutil.Holds(t, n == int64(size) && err == nil, "%d of %d bytes in %v: %v", n, size, time.Since(began), err)
}

func ends(t *testing.T, c *wireEnd) {
	t.Helper()
	testutil.Succeeds(t, c.CloseWrite(), "CloseWrite")
}

// A connection of which one direction is over, and the other idle, goes on by the next
// link although nobody uses it: its other end waits for no longer than a window.
func TestHalfAConnectionOutlivesItsLinkIdle(t *testing.T) {
	testutil.EachOf(t, []string{"to the destination", "to the client"}, func(t *testing.T, way string) {
		onRoute(t, 30*time.Second, func(t *testing.T, r *route) {
			from, to := r.dial()
			if way == "to the client" {
				from, to = to, from
			}
			ends(t, to)
			takes(t, from, 0, time.Second)
			r.relink(toAgent)
			time.Sleep(5 * time.Minute)
			testutil.Must(from.Write(make([]byte, 1000)))(t)
			ends(t, from)
			takes(t, to, 1000, time.Second)
		})
	})
}

// Who takes the last bytes slowly gets all of them, however long a window may be, and
// where links are lost meanwhile.
func TestLastBytesMayBeTakenSlowly(t *testing.T) {
	const size, slowly, step = 24 << 20, 12 << 20, 64 << 10
	for _, way := range []string{"to the destination", "to the client"} {
		for _, cut := range []string{"no link", "the near link", "the far link"} {
			t.Run(way+", losing "+cut, func(t *testing.T) {
				onRoute(t, 5*time.Second, func(t *testing.T, r *route) {
					from, to := r.dial()
					defer from.cut()
					if way == "to the client" {
						from, to = to, from
					}
					ends(t, to)
					go func() {
						_, _ = from.Write(make([]byte, size))
						_ = from.Close()
					}()
					for n := 0; n < size; n += step {
						time.Sleep(time.Millisecond)
						if n >= slowly {
							time.Sleep(300 * time.Millisecond)
						}
						m, err := io.ReadFull(to, make([]byte, step))
						testutil.Requires(t, err == nil, "%d of %d bytes: %v", n+m, size, err)
						if n != size-4<<20 {
							continue
						}
						switch cut {
						case "the near link":
							r.relink(toOpener)
						case "the far link":
							r.relink(toAgent)
						}
					}
					takes(t, to, 0, time.Second)
					_ = to.Close()
					time.Sleep(10 * time.Second)
					testutil.Equal(t, r.opener.Len()+r.agent.Len(), 0, "ends that are left")
				})
			})
		}
	}
}

// A reset that is lost with its link leaves the agent's end no longer than a window
// behind the loss, and the destination is reset.
func TestLostResetIsBounded(t *testing.T) {
	for _, half := range []bool{false, true} {
		t.Run(fmt.Sprint("half-closed: ", half), func(t *testing.T) {
			onRoute(t, 30*time.Second, func(t *testing.T, r *route) {
				client, dest := r.dial()
				if half {
					ends(t, client)
				}
				time.Sleep(time.Second)
				r.near.wire.hold(1, true)
				_ = client.Reset(nil)
				for range 100 { // so that the relay hears of it
					_, _ = dest.Write(make([]byte, 1000))
					time.Sleep(10 * time.Millisecond)
				}
				r.relink(toOpener)
				began := time.Now()
				_ = dest.SetReadDeadline(began.Add(31 * time.Second))
				n, err := io.Copy(io.Discard, dest)
				testutil.Holds(t, n == 0 && (half || err == io.ErrUnexpectedEOF), "%d bytes come, %v", n, err)
				time.Sleep(31*time.Second - time.Since(began))
				testutil.Equal(t, r.opener.Len()+r.agent.Len(), 0, "ends that are left")
			})
		})
	}
}

// Who is asked to move goes on by the server that asks, for it has another lane,
// and says what it moves for until it has; one that has lost its carrier goes on by
// any.
func TestMoveAsksTheSameServerFirst(t *testing.T) {
	w := &world{t: t, serve: make(grab, 1)}
	w.begin(1, time.Minute)
	type asking struct {
		first string
		bulk  bool
	}
	asked, by := make(chan asking, 10), make(chan link.Watcher, 10)
	refused := false
	c, err := w.opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		asked <- asking{f.Resume.First, f.Resume.Bulk}
		if f.Resume.Bulk && !refused {
			refused = true
			return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable}
		}
		return overheard{watches: func(w link.Watcher) { by <- w }}.by(w.Dial(ctx, f))
	})).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
	testutil.NoError(t, err)
	defer func() { _ = c.Reset(nil) }()
	(<-by).Move()
	for _, want := range []asking{{}, {"x", true}, {"", true}} {
		testutil.Equal(t, <-asked, want, "what is asked for")
	}
	again := <-by
	testutil.Eventually(t, "both ends know why it was resumed", func() bool {
		return w.opener.Stats().ByCause[tunnel.LossReplaced] == 1 && w.agent.Stats().ByCause[tunnel.LossReplaced] == 1
	})
	again.Lost(&tunnel.ResetError{Code: tunnel.CodeLost})
	testutil.Equal(t, <-asked, (asking{}), "what is asked for after a loss")
}
