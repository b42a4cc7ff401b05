package resume_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// What has ended and is not acknowledged counts in an end's budget, so that an opener which
// acknowledges nothing has no more of it than the budget allows.
func TestEndsThatLingerTakeMemory(t *testing.T) {
	const most, each = 10, 8 << 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		held := memory - 2*most*each // the rest is scarce once half of it is taken
		r.memory.Hold(held)
		var all []tunnel.Conn
		for n := range most + 2 {
			f := tunnel.NewFlow("tcp", "dest:1")
			f.Resume = &tunnel.Resume{Token: [16]byte{byte(n + 1)}, Window: time.Minute}
			c := testutil.Must(r.Dial(t.Context(), f))(t)
			dest := <-r.dests
			testutil.NoError(t, c.CloseWrite())
			testutil.NoError(t, dest.Close())
			testutil.NoError(t, testutil.Err(io.ReadAll(c)))
			synctest.Wait()
			testutil.Equal(t, f.Resume.Granted.Window > 0, n < most, "the connection %d may outlive its link", n)
			testutil.Equal(t, int(r.memory.Used())-held, min(n+1, most)*each, "bytes with the connection %d", n)
			all = append(all, c)
		}
		for _, c := range all {
			_ = c.Reset(nil)
		}
		synctest.Wait()
		testutil.Equal(t, int(r.memory.Used()), held, "bytes in the end")
	})
}

// A server whose memory is scarce gives up what has ended and is not acknowledged, and yet a
// reader that stalls meanwhile gets all that was sent to it, at either end.
func TestAStalledReaderWhereMemoryIsScarce(t *testing.T) {
	const size = 32 << 10
	onRoute(t, time.Minute, func(t *testing.T, r *route) {
		r.budget = link.NewBudget(1 << 20)
		r.relink(toAgent)
		r.relink(toOpener)
		c, dest, _ := r.download()
		defer c.Close()
		testutil.Must(dest.Write(make([]byte, size)))(t)
		testutil.NoError(t, dest.CloseWrite())
		testutil.Must(c.Write(make([]byte, wireRoom+size)))(t)
		testutil.NoError(t, c.CloseWrite())
		time.Sleep(time.Second)
		testutil.Equal(t, r.near.b.Streams(), 1, "streams at the server")
		r.budget.Hold(1 << 19)
		time.Sleep(time.Minute)
		synctest.Wait()
		testutil.Equal(t, r.near.b.Streams(), 0, "streams at the server, a minute later")
		if got, err := io.ReadAll(c); len(got) != size || err != nil {
			t.Errorf("%d bytes of %d came: %v", len(got), size, err)
		}
		takes(t, dest, wireRoom+size, time.Minute)
	})
}
