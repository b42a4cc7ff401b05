package admission

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// A flood has one turn, and then whoever comes from elsewhere has one.
func TestTurnsGoAroundTheSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		flood, other := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
		var order []string
		come := func(name string, from netip.Prefix) {
			go func() {
				if turns.Take(new(Turn), from) {
					order = append(order, name) // whoever has the turn is alone
				}
			}()
			synctest.Wait()
		}
		for i := range 3 {
			come(fmt.Sprint("flood ", i), flood)
		}
		come("other 0", other)
		come("other 1", other)
		for range 5 {
			turns.Give()
			synctest.Wait()
		}
		if want := []string{"flood 0", "flood 1", "other 0", "flood 2", "other 1"}; !slices.Equal(order, want) {
			t.Errorf("turns went to %s, want %s", strings.Join(order, ", "), strings.Join(want, ", "))
		}
		if turns.free != 1 || !turns.idle() {
			t.Errorf("%d turns are free at the end", turns.free)
		}
	})
}

// Who leaves waits no more, keeps no turn, and never gets one.
func TestWhoLeavesHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		from := netip.MustParsePrefix("192.0.2.1/32")
		first, second := new(Turn), new(Turn)
		if !turns.Take(first, from) {
			t.Fatal("no turn for the first")
		}
		told := make(chan bool, 1)
		go func() { told <- turns.Take(second, from) }()
		synctest.Wait()
		turns.Leave(second)
		if <-told {
			t.Error("a turn for one who has left")
		}
		turns.Leave(first) // has one, and gives it back
		turns.Give()
		if turns.Take(first, from) || turns.free != 1 || !turns.idle() {
			t.Errorf("%d turns are free at the end", turns.free)
		}
	})
}

// idle says whether nobody waits.
func (s *Turns) idle() bool { return s.lines[0].Empty() && s.lines[1].Empty() }

// What was begun is ended first, but however many go on, some begin.
func TestTurnsEndWhatWasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		from := netip.MustParsePrefix("192.0.2.1/32")
		var order []string
		come := func(name string, turn *Turn) {
			go func() {
				if turns.Take(turn, from) {
					order = append(order, name) // whoever has the turn is alone
				}
			}()
			synctest.Wait()
		}
		var begun [6]Turn
		for i := range begun {
			come("", &begun[i])
			turns.Give()
		}
		order = nil
		come("a", new(Turn))
		come("new", new(Turn))
		come("new", new(Turn))
		for i := range begun {
			come("on", &begun[i])
		}
		for range 9 {
			turns.Give()
			synctest.Wait()
		}
		if want := []string{"a", "on", "on", "on", "new", "on", "on", "on", "new"}; !slices.Equal(order, want) {
			t.Errorf("turns went to %q, want %q", order, want)
		}
		if turns.free != 1 || !turns.idle() {
			t.Errorf("%d turns are free at the end", turns.free)
		}
	})
}
