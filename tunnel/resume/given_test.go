package resume

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// resets is a carrier that its peer resets as it has taken what it is given.
type resets struct {
	lean
	tunnel.Sink
	c *Conn
}

func (r resets) Out() tunnel.Sink { return r }

func (r resets) Write(p []byte) (n int, _ error) { return r.Sink.Write(p) }

func (r resets) WriteChunks(src []tunnel.Chunk) error {
	tunnel.ReleaseAll(src)
	watcher{r.c, r, 0}.lost(&tunnel.ResetError{Code: tunnel.CodePeerReset})
	return nil
}

// A write that a carrier has taken has succeeded, whatever its peer does then: the next one
// hears of that.
func TestAWriteThatWasTakenSucceeds(t *testing.T) {
	for _, deadline := range []time.Time{{}, time.Now().Add(time.Hour)} {
		_, c := newEnd(t, nil)
		c.st = resets{c: c}
		_ = c.SetWriteDeadline(deadline)
		testutil.Equal(t, testutil.Must(c.Write([]byte("x")))(t), 1, "bytes by %v", deadline)
		n, err := c.Write([]byte("x"))
		testutil.Equal(t, n, 0, "more bytes by %v", deadline)
		testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodePeerReset, "by %v", deadline)
	}
}
