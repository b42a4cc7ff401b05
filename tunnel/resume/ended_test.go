package resume_test

import (
	"io"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A carrier that comes after the end of a direction was taken is closed as soon
// as the connection is over: a server that is to leave waits for it.
func TestLaterCarriersAreClosed(t *testing.T) {
	w := newWorld(t, 1, time.Hour)
	c, far := w.dialed(t, t.Context(), nil)
	testutil.NoError(t, c.CloseWrite())
	testutil.Equal(t, testutil.Err(far.Read(make([]byte, 1))), io.EOF, "what the destination reads")
	time.Sleep(200 * time.Millisecond) // it is acknowledged, too
	s := w.servers[0]
	s.relink(toOpener)
	eventually(t, func() bool { return w.opener.Stats().Resumes == 1 })
	_ = far.Close()
	testutil.Equal(t, testutil.Err(c.Read(make([]byte, 1))), io.EOF, "what the opener reads")
	_ = c.Close()
	testutil.Within(t, time.Minute, "no stream is left", func() bool { return s.near.a.Streams()+s.far.b.Streams() == 0 })
}
