package resume

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// However many connections a link had, one line tells of its loss.
func TestOneLineForAllOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		e := New(Options{Window: time.Second, Log: log})
		var conns [1000]Conn
		for i := range conns {
			e.lost(&conns[i])
		}
		time.Sleep(logAfter / 2)
		for i := range conns[1:] {
			e.resumed(&conns[i+1], tunnel.ResumeStatus{Lost: time.Now()}, false)
		}
		time.Sleep(time.Hour)
		e.lost(new(Conn))
		time.Sleep(time.Hour)
		entries := hook.AllEntries()
		testutil.Requires(t, len(entries) == 2, "%d lines, want 2", len(entries))
		want := logrus.Fields{"lost": int64(1000), "resumed": int64(999), "given_up": int64(0), "waiting": 1}
		for name, n := range want {
			testutil.Equal(t, entries[0].Data[name], n, "%s", name)
		}
		testutil.Equal(t, entries[1].Data["lost"], any(int64(1)), "lost, in the second")
		testutil.Equal(t, entries[1].Data["resumed"], any(int64(0)), "resumed, in the second")
	})
}

// losing returns a connection of m that has lost its carrier now.
func losing(m *Manager) *Conn {
	c := new(Conn)
	c.status.Store(&tunnel.ResumeStatus{Lost: time.Now()})
	m.lost(c)
	return c
}

// No line tells of bulk that moves to another lane, whenever the line is due.
func TestNoLineForBulkThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		e := New(Options{Window: time.Minute, Log: log})
		lose := func() *Conn { return losing(e) }
		for range 10 { // every 300 ms, of which 200 without a lane
			c := lose()
			time.Sleep(200 * time.Millisecond)
			e.resumed(c, c.ResumeStatus(), true)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		for _, line := range hook.AllEntries() {
			t.Errorf("a line for bulk that moved: %v", line.Data)
		}
		moved, lost := lose(), lose()
		e.resumed(moved, moved.ResumeStatus(), true)
		time.Sleep(2 * time.Second)
		e.resumed(lost, lost.ResumeStatus(), false)
		time.Sleep(time.Minute)
		var told []any
		for _, line := range hook.AllEntries() {
			told = append(told, line.Message, line.Data["lost"], line.Data["resumed"])
		}
		want := []any{"connections lost their link", int64(1), int64(0), "connections were resumed", int64(0), int64(1)}
		testutil.EqualSlices(t, told, want, "lines")
	})
}

// Losses that the log has told of are not taken from those that come later, however their
// connections end.
func TestEveryLossHasItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		e := New(Options{Window: time.Minute, Log: log})
		lose := func() *Conn {
			defer time.Sleep(2 * logAfter)
			return losing(e)
		}
		for _, life := range []Life{Ended, Unconfirmed} { // by applications, while there was no carrier
			left := lose()
			left.m.life = life
			e.remove(left)
		}
		slow := lose()
		e.resumed(slow, slow.ResumeStatus(), true) // it has moved, but the log told of a loss
		expired := lose()
		expired.m.life = Expired
		e.remove(expired)
		time.Sleep(time.Minute)
		var told [][3]any
		for _, line := range hook.AllEntries() {
			told = append(told, [3]any{line.Data["lost"], line.Data["resumed"], line.Data["given_up"]})
		}
		zero, one := any(int64(0)), any(int64(1))
		want := [][3]any{{one, zero, zero}, {one, zero, zero}, {one, zero, zero}, {one, one, zero}, {zero, zero, one}}
		testutil.EqualSlices(t, told, want, "lost, resumed and given up")
		testutil.EqualSlices(t, hook.LastEntry().Data["reasons"].([]string), []string{"window"}, "why")
	})
}

// Behind Wait nothing is logged any more: the log may be closed by then.
func TestNoLineBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		e := New(Options{Window: time.Second, Log: log})
		e.lost(new(Conn))
		e.Close()
		e.Wait()
		time.Sleep(time.Hour)
		testutil.Equal(t, len(hook.AllEntries()), 0, "lines")
	})
}

// A sum has all fields of both, and neither's map.
func TestStatsPlus(t *testing.T) {
	filled := func(n int64) (s Stats) {
		for v := range reflect.ValueOf(&s).Elem().NumField() {
			if f := reflect.ValueOf(&s).Elem().Field(v); f.CanInt() {
				f.SetInt(n)
			}
		}
		s.ByCause[tunnel.LossCut] = uint64(n)
		s.GivenUp = map[string]int64{"a": n}
		return s
	}
	one, two := filled(1), filled(2)
	two.GivenUp["b"] = 5
	want := filled(3)
	want.GivenUp["b"] = 5
	testutil.Equal(t, reflect.DeepEqual(one.Plus(two), want), true, "the sum is right: %+v", one.Plus(two))
	testutil.Equal(t, len(one.GivenUp), 1, "causes of one, which the sum left")
	testutil.Equal(t, two.GivenUp["a"], 2, "and of two")
	testutil.Equal(t, reflect.DeepEqual((Stats{}).Plus(one), one), true, "nothing plus one is that")
}

// The connections that were given up are counted by why, of the lives that are over without
// one of the ends' doing.
func TestGivenUpByWhy(t *testing.T) {
	given := slices.Sorted(maps.Keys(New(Options{}).Stats().GivenUp))
	want := []string{"contradiction", "denied", "fruitless", "memory", "unconfirmed", "unknown", "window"}
	testutil.EqualSlices(t, given, want, "the reasons")
}
