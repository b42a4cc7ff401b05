package resume

import (
	"testing"
	"time"
)

// The room of a line follows the tries that were made: one whose turn came while its
// writer was still stuck in the link that was lost takes no room from the others.
func TestRoomOfALine(t *testing.T) {
	var all lines
	all.add("a", waiter{c: new(Conn)})
	all.add("a", waiter{c: new(Conn)})
	_, l := all.next()
	for _, step := range []struct {
		how  outcome
		took time.Duration
		room int
	}{
		{succeeded, longTry - 1, atOnce},
		{succeeded, longTry, atOnce + 1},
		{untried, firstPause, atOnce + 1},
		{succeeded, longTry, atOnce + 2},
		{failed, longTry, atOnce},
	} {
		if all.tried(l, step.how, step.took); l.room != step.room {
			t.Errorf("there is room for %d behind %+v", l.room, step)
		}
		l.trying++
	}
}
