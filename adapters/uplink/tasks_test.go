package uplink

import (
	"testing"
	"testing/synctest"
)

// What was started goes on behind close, and is over when end returns. Nothing
// starts behind close.
func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := newTasks()
		over := false
		tasks.start(func() { <-tasks.ctx.Done(); over = true })
		if err := tasks.err(); err != nil {
			t.Error(err)
		}
		tasks.close()
		synctest.Wait()
		if tasks.err() != errClosed || tasks.ctx.Err() != nil {
			t.Errorf("closed: %v, ended: %v", tasks.err(), tasks.ctx.Err())
		}
		tasks.start(func() { t.Error("it was too late") })
		tasks.end()
		if !over {
			t.Error("end does not wait")
		}
	})
}
