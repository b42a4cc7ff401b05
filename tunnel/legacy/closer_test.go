package legacy

import (
	"bufio"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"konnectivity/internal/testutil"
)

var roles = []struct {
	name string
	*role
}{
	{"Opener, old peer", oldOpener}, {"Opener, peer with half-close", duplexOpener},
	{"Server, old peer", oldServer}, {"Server, peer with half-close", duplexServer},
}

var stateNames = [states]string{"open", "awaiting", "answered", "settling", "closing", "halfClosed", "answering", "finishing", "unheard", "lingering", "resetting", "dropping", "delivering", "over"}

func (s state) String() string { return stateNames[s] }

var eventNames = [events]string{"CloseWrite", "Close", "Reset", "hasten", "DATA", "peer ends", "peer resets", "sent", "due", "orphaned"}

func (e event) String() string { return eventNames[e] }

var actionNames = []string{"queue close", "queue reset", "drop", "discard", "mute", "forget", "cancel"}

// doc.go has the rules as tables, so that a reader need not decode them.
func TestRulesAreDocumented(t *testing.T) {
	doc := testutil.Must(os.ReadFile("doc.go"))(t)
	for _, r := range roles {
		var b strings.Builder
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "state\ton\tif\tthen\tdoes\tnext look")
		for _, rule := range r.rules {
			var from, does []string
			for _, s := range rule.from {
				from = append(from, s.String())
			}
			for do := rule.do; do != 0; do &= do - 1 {
				does = append(does, actionNames[bits.TrailingZeros8(uint8(do))])
			}
			when, next := "", rule.wait.String()
			if rule.if_ != nil {
				when = rule.if_.name
			}
			switch rule.wait {
			case 0:
				next = ""
			case keep:
				next = "as it was"
			}
			fmt.Fprintf(w, "%s\t%v\t%s\t%v\t%s\t%s\n", strings.Join(from, " "), rule.on, when, rule.to, strings.Join(does, ", "), next)
		}
		w.Flush()
		table := "// " + r.name + ":\n//\n"
		for line := range strings.Lines(b.String()) {
			table += "//\t" + strings.TrimRight(line, " \n") + "\n"
		}
		testutil.Contains(t, string(doc), table, "doc.go")
	}
}

// Whatever happens in whatever order: one closing packet at most, nothing after the end,
// and an end within the bounds once the holder has closed the connection.
func TestCloserModel(t *testing.T) {
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := closer{role: roles[r.IntN(len(roles))].role}
		now, queued, forgotten := time.Unix(1, 0), 0, 0
		var log []string
		step := func(e event, f facts) {
			do := c.step(e, f, now)
			log = append(log, fmt.Sprintf("%v: %v", e, c.state))
			if do&queueReset != 0 {
				queued = 0 // it takes the place of one that waits
			}
			queued += bits.OnesCount8(uint8(do & (queueClose | queueReset)))
			if forgotten > 0 && do&(queueClose|queueReset|drop|forget) != 0 {
				t.Fatalf("seed %d: %b is done after the end: %v", seed, do, log)
			}
			forgotten += bits.OnesCount8(uint8(do & forget))
		}
		for range r.IntN(12) {
			now = now.Add(time.Duration(r.IntN(12_000)) * time.Millisecond)
			e := event(r.IntN(int(events)))
			if e == sent && queued == 0 || e == arrives && !c.closed {
				continue
			}
			step(e, facts{unanswered: r.IntN(2) == 0, unread: r.IntN(2) == 0, traffic: r.Uint64N(3)})
		}
		if !c.closed {
			step(closes, facts{})
		}
		testutil.AtMost(t, queued, 1, "seed %d: closing packets of %v", seed, log)
		began := now
		if queued > 0 {
			step(sent, facts{})
		}
		for forgotten == 0 && !c.next.IsZero() {
			now = c.next
			step(due, facts{unread: true, traffic: uint64(len(log))})
			if queued > 0 {
				step(sent, facts{})
			}
		}
		testutil.Equal(t, forgotten, 1, "seed %d: times it is forgotten: %v", seed, log)
		testutil.AtMost(t, now.Sub(began), closeLinger, "seed %d: time after Close: %v", seed, log)
	}
}

// What a peer takes not at all is dropped some time after a reset, also behind CloseWrite.
func TestResetFreesWhatIsNotTaken(t *testing.T) {
	for _, role := range servers {
		for _, before := range [][]event{{}, {closesWrite}, {peerEnds}} {
			c, now := closer{role: role}, time.Unix(1, 0)
			for _, e := range before {
				c.step(e, facts{}, now)
			}
			kept := c.step(resets, facts{}, now)&discard == 0
			do := c.step(due, facts{}, now.Add(closeLinger))
			testutil.Holds(t, kept && do == drop|discard|forget && c.state == over, "behind %v: kept %v, then %b, %v", before, kept, do, c.state)
		}
	}
}

// Each line of testdata/endings.txt is a script and the packets, with
// their times, by which f0f0603 ended the connection; but where a server resets it behind
// CloseWrite, what waits to be sent was dropped then.
func TestRecordedEndings(t *testing.T) {
	file := testutil.Must(os.Open("testdata/endings.txt"))(t)
	defer file.Close()
	lines := bufio.NewScanner(file)
	n := 0
	for ; lines.Scan(); n++ {
		role, script, _ := strings.Cut(lines.Text(), " ")
		script, want, _ := strings.Cut(script, " ")
		testutil.Equal(t, strings.TrimSpace(trace(t, role, script)), want, "%s %s", role, script)
	}
	testutil.Succeeds(t, lines.Err(), "the lines")
	testutil.AtLeast(t, n, 200, "endings")
}
