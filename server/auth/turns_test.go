package auth

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// playTurns reads a script: "p1" to "d9" are waiters of rank p, q, s or d
// (proven, plausible, suspect, doubtful) and source 1 to 9, in the order in which they come.
func playTurns(t *testing.T, u *turns, script string) (names map[*waiter]string, away []string) {
	t.Helper()
	names = make(map[*waiter]string)
	for name := range strings.FieldsSeq(script) {
		from := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[1] - '0'}), 32)
		w := newWaiter(rank(strings.IndexByte("pqsd", name[0])), from)
		names[w] = name
		if gone := u.add(w); gone != nil {
			away = append(away, names[gone])
		}
	}
	return names, away
}

// drainTurns is who gets a turn, one every interval, until nobody waits.
func drainTurns(u *turns, names map[*waiter]string) string {
	var got []string
	now := time.Unix(0, 0)
	for u.waiting > 0 {
		w, early := u.next(now)
		if w == nil {
			now = now.Add(max(early, u.every))
			continue
		}
		got = append(got, names[w])
		u.done(w.rank)
	}
	return strings.Join(got, " ")
}

func TestTurns(t *testing.T) {
	for _, c := range []struct{ name, waiting, want string }{
		{"one source: first come, first served", "q1a q1b q1c", "q1a q1b q1c"},
		{"sources in rotation", "q1a q1b q1c q1d q2a q3a", "q1a q2a q3a q1b q1c q1d"},
		{"the best rank first", "d1 s1 q1 p1", "p1 q1 s1 d1"},
		{"one turn of eight for each lower rank",
			"p1a p1b p1c p1d p1e p1f p1g p1h q2a q2b s4a s4b d3a d3b",
			"p1a p1b q2a p1c p1d s4a p1e d3a p1f p1g q2b p1h s4b d3b"},
		{"nobody's turn is lost while a rank is empty", "d1a d1b d1c d1d d1e", "d1a d1b d1c d1d d1e"},
	} {
		u := newTurns(10, 1)
		names, _ := playTurns(t, u, c.waiting)
		if got := drainTurns(u, names); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
		for r := range ranks {
			if !u.lanes[r].Empty() || u.running[r] != 0 {
				t.Errorf("%s: rank %d keeps something", c.name, r)
			}
		}
	}
}

// One too many: the last of the longest line of the least rank goes.
func TestTurnsAreCrowdedOutFromBelow(t *testing.T) {
	for _, c := range []struct{ name, waiting, away string }{
		{"room for all", "q1 q2 d3", ""},
		{"the newcomer's line is the longest", "q1a q2a q2b q2c", "q2c"},
		{"another's line is", "q2a q2b q1a q3a", "q2b"},
		{"all are equal: who would wait longest", "q1a q2a q3a q4a", "q4a"},
		{"the least rank", "p1a p1b d2a p1c", "d2a"},
		{"the newcomer is of the least rank", "p1a p1b q1a d2a", "d2a"},
	} {
		u := newTurns(10, 1)
		u.most = 3
		if _, away := playTurns(t, u, c.waiting); strings.Join(away, " ") != c.away || u.waiting > 3 {
			t.Errorf("%s: %q went, want %q; %d wait", c.name, away, c.away, u.waiting)
		}
	}
}

func TestTurnsKeepTheirPace(t *testing.T) {
	u := newTurns(10, 3)
	names, _ := playTurns(t, u, strings.Repeat("q1a ", 20))
	now := time.Unix(0, 0)
	for i := range 3 {
		if w, _ := u.next(now); names[w] == "" {
			t.Fatalf("turn %d of the burst was not given", i)
		}
	}
	if w, early := u.next(now); w != nil || early != 100*time.Millisecond {
		t.Errorf("after the burst: %v in %v", names[w], early)
	}
	u.spend(now) // a call of another kind
	if _, early := u.next(now); early != 200*time.Millisecond {
		t.Errorf("after another call: in %v", early)
	}
}

// Slow reviews of a lower rank leave room for those of a better one.
func TestTurnsThatTakeLongLeaveRoom(t *testing.T) {
	u := newTurns(1000, 1000)
	playTurns(t, u, strings.Repeat("d1 ", 500))
	now := time.Unix(0, 0)
	for range mostRunning[doubtful] {
		if w, _ := u.next(now); w == nil {
			t.Fatal("a turn was not given")
		}
	}
	if w, early := u.next(now); w != nil || early != 0 {
		t.Errorf("more than %d doubtful reviews at once", mostRunning[doubtful])
	}
	names, _ := playTurns(t, u, "p2")
	if w, _ := u.next(now); names[w] != "p2" {
		t.Error("a proven one found no room")
	}
	u.done(doubtful)
	if w, _ := u.next(now); w == nil || w.rank != doubtful {
		t.Error("the room that was left is not used")
	}
}

// Those who leave are as if they had never come.
func TestTurnsAreNotGivenToThoseWhoLeft(t *testing.T) {
	u := newTurns(10, 1)
	names, _ := playTurns(t, u, "q1a q1b q2a q3a q3b")
	for w, name := range names {
		if name == "q1a" || name == "q2a" {
			u.leave(w)
		}
	}
	if got := drainTurns(u, names); got != "q1b q3a q3b" {
		t.Error(got)
	}
}
