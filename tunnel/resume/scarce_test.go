package resume_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

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
