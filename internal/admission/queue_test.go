package admission

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// The classes of these tests' queues, from best to worst. Each but the best has one
// turn of eight.
const classNames = "pqsd"

const p, q, s, d = 0, 1, 2, 3

var eighths = [][]int{
	{p, q, s, d}, {p, q, s, d}, {q, p, s, d}, {p, q, s, d}, {p, q, s, d}, {s, p, q, d}, {p, q, s, d}, {d, p, q, s},
}

// paced is a queue with ten turns a second.
func paced(burst int) *Queue {
	return NewQueue(QueueConfig{Precedence: eighths, Every: 100 * time.Millisecond, Burst: burst})
}

// play reads a script: "p1" to "d9" are tickets of a class and of a source from 1 to
// 9, in the order in which they come.
func play(u *Queue, script string) (names map[*Ticket]string, displaced []string) {
	names = make(map[*Ticket]string)
	for name := range strings.FieldsSeq(script) {
		t := &Ticket{Class: strings.IndexByte(classNames, name[0]), Source: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, name[1] - '0'}), 32)}
		names[t] = name
		if gone := u.add(t); gone != nil {
			displaced = append(displaced, names[gone])
		}
	}
	return names, displaced
}

// drain returns who gets a turn, one every interval, until nobody waits.
func drain(u *Queue, names map[*Ticket]string) string {
	var got []string
	now := time.Unix(0, 0)
	for u.waiting > 0 {
		t, early := u.next(now)
		if t == nil {
			now = now.Add(max(early, u.cfg.Every))
			continue
		}
		got = append(got, names[t])
		u.finish(t)
	}
	return strings.Join(got, " ")
}

func TestQueueOrder(t *testing.T) {
	for _, c := range []struct{ name, waiting, want string }{
		{"one source: first come, first served", "q1a q1b q1c", "q1a q1b q1c"},
		{"sources in rotation", "q1a q1b q1c q1d q2a q3a", "q1a q2a q3a q1b q1c q1d"},
		{"the best class first", "d1 s1 q1 p1", "p1 q1 s1 d1"},
		{"one turn of eight for each lower class",
			"p1a p1b p1c p1d p1e p1f p1g p1h q2a q2b s4a s4b d3a d3b",
			"p1a p1b q2a p1c p1d s4a p1e d3a p1f p1g q2b p1h s4b d3b"},
		{"nobody's turn is lost while a class is empty", "d1a d1b d1c d1d d1e", "d1a d1b d1c d1d d1e"},
	} {
		u := paced(1)
		names, _ := play(u, c.waiting)
		testutil.Equal(t, drain(u, names), c.want, "%s", c.name)
		for class := range u.classes {
			testutil.Holds(t, u.classes[class].empty() && u.running[class] == 0 && u.total == 0,
				"%s: class %d keeps something", c.name, class)
		}
	}
}

// One too many displaces the last ticket of the source with most in the worst class.
func TestFullQueueDisplacesFromBelow(t *testing.T) {
	for _, c := range []struct{ name, waiting, displaced string }{
		{"room for all", "q1 q2 d3", ""},
		{"the newcomer's source has most", "q1a q2a q2b q2c", "q2c"},
		{"another's has", "q2a q2b q1a q3a", "q2b"},
		{"all are equal: who would wait longest", "q1a q2a q3a q4a", "q4a"},
		{"the worst class", "p1a p1b d2a p1c", "d2a"},
		{"the newcomer is of the worst class", "p1a p1b q1a d2a", "d2a"},
	} {
		u := paced(1)
		u.cfg.Waiting = 3
		if _, displaced := play(u, c.waiting); strings.Join(displaced, " ") != c.displaced || u.waiting > 3 {
			t.Errorf("%s: %q went, want %q; %d wait", c.name, displaced, c.displaced, u.waiting)
		}
	}
}

func TestQueueKeepsItsPace(t *testing.T) {
	u := paced(3)
	names, _ := play(u, strings.Repeat("q1a ", 20))
	now := time.Unix(0, 0)
	for i := range 3 {
		next, _ := u.next(now)
		testutil.Requires(t, names[next] != "", "turn %d of the burst was not given", i)
	}
	if next, early := u.next(now); next != nil || early != 100*time.Millisecond {
		t.Errorf("after the burst: %v in %v", names[next], early)
	}
	u.spend(now) // work of another kind
	_, early := u.next(now)
	testutil.Holds(t, early == 200*time.Millisecond, "after other work: in %v", early)
}

// Slow work of a lower class leaves room for that of a better one.
func TestSlowClassLeavesRoom(t *testing.T) {
	const most = 32
	u := NewQueue(QueueConfig{Precedence: eighths, Running: []int{128, 64, most, most}})
	play(u, strings.Repeat("d1 ", 500))
	now := time.Unix(0, 0)
	for range most {
		next, _ := u.next(now)
		testutil.Requires(t, next != nil, "a turn was not given")
	}
	next, early := u.next(now)
	testutil.Holds(t, next == nil && early == 0, "more than %d of a class at once", most)
	names, _ := play(u, "p2")
	next, _ = u.next(now)
	testutil.Equal(t, names[next], "p2", "who is let in next")
	u.finish(&Ticket{Class: d})
	next, _ = u.next(now)
	testutil.Holds(t, next != nil && next.Class == d, "the room that was left is not used")
}

// Those who leave are as if they had never come.
func TestQueueForgetsRemovedTickets(t *testing.T) {
	u := paced(1)
	names, _ := play(u, "q1a q1b q2a q3a q3b")
	for ticket, name := range names {
		if name == "q1a" || name == "q2a" {
			u.remove(ticket)
		}
	}
	testutil.Equal(t, drain(u, names), "q1b q3a q3b", "who has a turn")
}

// handshakes is a queue for one at a time, in which the second class has three turns
// of four.
func handshakes() *Queue {
	return NewQueue(QueueConfig{Precedence: [][]int{{1, 0}, {1, 0}, {1, 0}, {0, 1}}, Limit: 1})
}

var flood, other = netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")

// waitInTurn starts a wait for each ticket, one after the other, and notes the name
// when it has its turn, in which it is alone. It returns the last of them.
func waitInTurn(t *testing.T, u *Queue, order *[]string, names string, ticket func() *Ticket) (last *Ticket) {
	for name := range strings.SplitSeq(names, ",") {
		last = ticket()
		go func(ticket *Ticket) {
			if u.Wait(t.Context(), ticket) == nil {
				*order = append(*order, name)
			}
		}(last)
		synctest.Wait()
	}
	return last
}

// A limit holds, sources have turns in rotation, and what was begun ends first.
func TestQueueGivesTurnsOneByOne(t *testing.T) {
	for name, c := range map[string]struct {
		come func(join func(names string, class int, from netip.Prefix))
		want string
	}{
		"a flood and others": {func(join func(string, int, netip.Prefix)) {
			join("flood 0,flood 1,flood 2", 0, flood)
			join("other 0,other 1", 0, other)
		}, "flood 0,flood 1,other 0,flood 2,other 1"},
		"what was begun": {func(join func(string, int, netip.Prefix)) {
			join("a,new,new", 0, flood)
			join("on,on,on,on,on,on", 1, flood)
		}, "a,on,on,on,new,on,on,on,new"},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := handshakes()
			var order []string
			c.come(func(names string, class int, from netip.Prefix) {
				waitInTurn(t, u, &order, names, func() *Ticket { return &Ticket{Class: class, Source: from} })
			})
			classes := map[string]int{"on": 1}
			for i := 0; u.total+u.waiting > 0; i++ {
				u.Done(&Ticket{Class: classes[order[i]]})
				synctest.Wait()
			}
			testutil.Equal(t, strings.Join(order, ","), c.want, "%s: whom turns went to", name)
		})
	}
}

// Who leaves waits no more, keeps no turn, and never gets one; nor does one whose
// context ends.
func TestQueueEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := handshakes()
		first, second, third := &Ticket{Source: flood}, &Ticket{Source: flood}, &Ticket{Source: flood}
		testutil.NoError(t, u.Wait(t.Context(), first))
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- u.Wait(t.Context(), second) }()
		synctest.Wait()
		u.Leave(second)
		go func() { ended <- u.Wait(ctx, third) }()
		synctest.Wait()
		cancel(errors.New("cause"))
		if left, over := <-ended, <-ended; left == nil || over == nil || over.Error() != "cause" {
			t.Errorf("a wait ended with %v for one who left, with %v at the end of its context", left, over)
		}
		u.Leave(first) // has a turn, and gives it back
		u.Done(first)
		testutil.Holds(t, u.Wait(t.Context(), first) != nil && u.total+u.waiting == 0, "a turn for one who left")
	})
}

// A turn that comes while its waiter goes is not lost.
func TestQueueKeepsTheTurnOfOneWhoGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := handshakes()
		first, second := &Ticket{Source: flood}, &Ticket{Source: flood}
		testutil.NoError(t, u.Wait(t.Context(), first))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- u.Wait(ctx, second) }()
		synctest.Wait()
		u.mu.Lock() // the waiter is awake, and has yet to leave
		cancel()
		u.finish(first)
		u.grant()
		u.mu.Unlock()
		testutil.Fails(t, <-ended, "the wait went on")
		testutil.Equal(t, u.total+u.waiting, 0, "turns that are taken or waited for")
	})
}

// A displaced ticket is told so while it waits, and time gives turns by itself.
func TestQueueEndsDisplacedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := NewQueue(QueueConfig{Precedence: [][]int{{0}}, Every: time.Second, Burst: 1, Waiting: 1})
		var order []string
		start := time.Now()
		waitInTurn(t, u, &order, "now,later", func() *Ticket { return &Ticket{Source: flood} })
		testutil.Equal(t, u.Wait(t.Context(), &Ticket{Source: flood}), ErrQueueFull, "one too many")
		time.Sleep(time.Second)
		synctest.Wait()
		took := time.Since(start)
		testutil.Holds(t, slices.Equal(order, []string{"now", "later"}) && took == time.Second, "%q after %v", order, took)
	})
}
