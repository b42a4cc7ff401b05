package resume_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Close lets go of whoever reads or writes, with a carrier that nothing comes by, and
// without one. What the peer sends is taken all the same.
func TestCloseLetsGoOfWhoWaits(t *testing.T) {
	for i := range 8 {
		acceptor, away, writes := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("acceptor: %v, away: %v, writes: %v", acceptor, away, writes), func(t *testing.T) {
			apart(t, func(t *testing.T, w *world, c, peer tunnel.Conn) {
				if acceptor {
					c, peer = peer, c
				}
				if away {
					w.servers[0].cut(toOpener)
					synctest.Wait()
				}
				wait := c.Read
				if writes {
					wait = c.Write
				}
				closeBeside(t, c, wait)
				if !away {
					testutil.Succeeds(t, testutil.Err(peer.Write(make([]byte, 1<<20))), "the peer's write")
				}
				_ = peer.Reset(nil)
				_ = c.Reset(nil)
			})
		})
	}
}

// A Manager that is closed resets its connections. The error says so at its own end; at the other
// one, it says that this process is gone.
func TestManagersThatAreClosedSaySo(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, peer tunnel.Conn) {
		w.opener.Close()
		here, there := testutil.Err(c.Read(make([]byte, 1))), testutil.Err(peer.Read(make([]byte, 1)))
		for err, closed := range map[error]bool{here: true, there: false} {
			testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodeGone, "the code of %v", err)
			testutil.Equal(t, tunnel.LossOf(err) == tunnel.LossLocal, closed, "%v is told to be of this process", err)
			testutil.Equal(t, errors.Is(err, net.ErrClosed), closed, "%v is net.ErrClosed", err)
		}
		testutil.Equal(t, here.Error(), "connection reset: this process closed the tunnel that carried it", "what it says")
		_ = peer.Reset(nil)
	})
}

// closeBeside closes an end while one waits to read from it or to write to it.
func closeBeside(t *testing.T, c tunnel.Conn, wait func([]byte) (int, error)) {
	t.Helper()
	let := make(chan error, 1)
	go func() {
		_, err := wait(make([]byte, 1<<20))
		let <- err
	}()
	synctest.Wait()
	_ = c.Close()
	if err, is := already(t, "who waits is let go", let); is {
		testutil.ErrorIs(t, err, net.ErrClosed, "who waits")
	}
}
