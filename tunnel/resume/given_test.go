package resume

import (
	"testing"
	"time"

	"konnectivity/tunnel"
)

// resets is a carrier that its peer resets as it has taken what it is given.
type resets struct {
	lean
	tunnel.Sink
	c *Conn
}

func (r resets) Out() tunnel.Sink                { return r }
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
		if n, err := c.Write([]byte("x")); n != 1 || err != nil {
			t.Errorf("by %v: %d bytes: %v", deadline, n, err)
		}
		if n, err := c.Write([]byte("x")); n != 0 || tunnel.CodeOf(err) != tunnel.CodePeerReset {
			t.Errorf("by %v: %d more bytes: %v", deadline, n, err)
		}
	}
}
