package resume_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// grab hands the test what an agent serves.
type grab chan tunnel.Conn

// Serve implements tunnel.Handler.
func (g grab) Serve(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	far, other := net.Pipe() // only for its addresses
	defer far.Close()
	defer other.Close()
	near, err := answer(tunnel.Wrap(far), nil)
	if err == nil {
		g <- near
	}
	ended(err)
}

// A Conn keeps what net.Conn promises, whichever end it is, and also while its
// links are cut.
func TestConnIsANetConn(t *testing.T) {
	for name, pause := range map[string]time.Duration{"in peace": 0, "links are cut": 20 * time.Millisecond} {
		for _, reverse := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", opener", true: ", acceptor"}[reverse], func(t *testing.T) {
				accepted := make(grab, 1)
				w := &world{t: t, serve: accepted}
				w.begin(2, time.Minute)
				dialer := w.opener.Dialer(w)
				nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
					c, err := dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
					if err != nil {
						return nil, nil, nil, err
					}
					a, b := net.Conn(c), net.Conn(<-accepted)
					if reverse {
						a, b = b, a
					}
					stop := make(chan struct{})
					var messing sync.WaitGroup
					if pause > 0 {
						messing.Go(func() { w.mess(stop, pause) })
					}
					return a, b, func() { close(stop); messing.Wait(); a.Close(); b.Close() }, nil
				})
			})
		}
	}
}

// The bytes of one Write come together, whatever others write at the same time, as those of
// every net.Conn do.
func TestWritesDoNotMix(t *testing.T) {
	apart(t, func(t *testing.T, _ *world, c, a tunnel.Conn) {
		var writers sync.WaitGroup
		for _, text := range []string{"a", "b", "c"} {
			writers.Go(func() {
				testutil.Succeeds(t, testutil.Err(c.Write(bytes.Repeat([]byte(text), 10*tunnel.ChunkSize))), "a write of %s", text)
			})
		}
		go func() {
			writers.Wait()
			_ = c.Close()
		}()
		got := testutil.Must(io.ReadAll(a))(t)
		testutil.Equal(t, len(slices.Compact(got)), 3, "pieces of what three write")
		_ = a.Close()
	})
}

// A deadline of writes that has passed holds up no end of the direction, as with TCP.
func TestCloseWriteBehindADeadline(t *testing.T) {
	apart(t, func(t *testing.T, _ *world, c, a tunnel.Conn) {
		testutil.Must(c.Write([]byte("hello")))(t)
		testutil.NoError(t, c.SetWriteDeadline(time.Unix(1, 0)))
		testutil.NoError(t, c.CloseWrite())
		got := testutil.Later(func() string {
			all, err := io.ReadAll(a)
			return fmt.Sprint(string(all), err)
		})
		if text, is := already(t, "the peer reads the end", got); is {
			testutil.Equal(t, text, "hello<nil>", "what the peer reads")
		}
		_ = a.Reset(nil)
		_ = c.Reset(nil)
		synctest.Wait()
	})
}
