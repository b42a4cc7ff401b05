package resume

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whoever resumes connections does not wait for one whose writer is stuck in the
// link that was lost, and goes on at once when the writer is done.
func TestResumingIsNotHeldUpByAStuckWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{end: newEnd(time.Minute), sending: true}
		c.changed.L = &c.mu
		began := time.Now()
		if how, again := c.resume(t.Context()); how != untried || again != firstPause || time.Since(began) != firstPause {
			t.Errorf("it waits %v and is to wait %v: %v", time.Since(began), again, how)
		}
		began = time.Now()
		time.AfterFunc(firstPause/2, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.sending = false
			c.changed.Broadcast()
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.calm(firstPause) || time.Since(began) != firstPause/2 {
			t.Errorf("calm after %v", time.Since(began))
		}
	})
}
