package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Subject is a path and the processes that carry it.
type Subject struct {
	Path
	PIDs []int // their CPU and memory are reported; may be empty
}

// Plan says what to measure.
type Plan struct {
	Tests    []string      // of TestNames, in the order to run
	Runs     int           // rounds; subjects take turns within each
	Streams  []int         // of down and up
	Size     int64         // bytes of down and up, over all streams together
	Duration time.Duration // of each rtt, small and churn
	Dialers  int           // of churn
	Idle     int           // connections of idle
	Rate     int           // new connections per second of idle; 0 means as fast as possible
	Stalled  int           // readers of stalled
	Settle   time.Duration // how long processes rest before their memory is read
}

// stallSize is what a stalled reader asks for: more than any buffer holds.
const stallSize = 1 << 30

// test is one kind of measurement of one subject.
type test func(s Subject, ctx context.Context, plan Plan, rep *Report) error

// tests by name.
var tests = map[string]test{
	"down": bulk(Down), "up": bulk(Up), "rtt": Subject.rtt, "small": Subject.small,
	"churn": Subject.churn, "idle": Subject.idle, "stalled": Subject.stalled,
}

// TestNames returns the tests in a sensible order.
func TestNames() []string {
	return []string{"down", "up", "rtt", "small", "churn", "idle", "stalled"}
}

// CheckTests returns an error that lists the tests if names is empty or has one that
// does not exist.
func CheckTests(names []string) error {
	if len(names) == 0 {
		return fmt.Errorf("no test: want some of %s", strings.Join(TestNames(), ","))
	}
	return CheckNames("test", names, TestNames())
}

// CheckNames returns an error that lists the known names unless each of names is one of them.
func CheckNames(what string, names, known []string) error {
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("no %s %q: want some of %s", what, name, strings.Join(known, ","))
		}
	}
	return nil
}

// Run carries out the plan: in each round every test, and in each test every
// subject in turn, so that changes of the machine's speed affect all alike.
// progress is called with what begins. Once ctx has ended, its error is returned.
func Run(ctx context.Context, plan Plan, subjects []Subject, progress func(string)) (*Report, error) {
	if err := CheckTests(plan.Tests); err != nil {
		return nil, err
	}
	rep := new(Report)
	for round := range plan.Runs {
		for _, name := range plan.Tests {
			for _, s := range subjects {
				progress(fmt.Sprintf("round %d of %d: %s over %s", round+1, plan.Runs, name, s.Name))
				err := tests[name](s, ctx, plan, rep)
				switch {
				case ctx.Err() != nil: // whatever that broke
					return rep, ctx.Err()
				case err != nil:
					return rep, fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return rep, nil
}

// bulk is a test with each number of streams.
func bulk(d Direction) test {
	return func(s Subject, ctx context.Context, plan Plan, rep *Report) error {
		for _, streams := range plan.Streams {
			if err := s.bulk(ctx, d, streams, plan.Size/int64(streams), rep); err != nil {
				return err
			}
		}
		return nil
	}
}

func (s Subject) bulk(ctx context.Context, d Direction, streams int, size int64, rep *Report) error {
	before, err := s.usage()
	if err != nil {
		return err
	}
	t, err := s.Bulk(ctx, d, streams, size)
	if err != nil {
		return err
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	label := fmt.Sprintf("%s, %s", d, plural(streams, "stream"))
	rep.Add(s.Name, label, "MB/s", t.MBps())
	if len(s.PIDs) > 0 {
		rep.Add(s.Name, "CPU of "+label, "s/GB", (after.CPU-before.CPU).Seconds()/(float64(t.Bytes)/1e9))
	}
	return nil
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func (s Subject) usage() (Usage, error) { return Processes(s.PIDs...) }

func (s Subject) rtt(ctx context.Context, plan Plan, rep *Report) error {
	l, err := s.RoundTrip(ctx, plan.Duration)
	rep.Latency(s.Name, "round trip of 64 B", l)
	return err
}

func (s Subject) small(ctx context.Context, plan Plan, rep *Report) error {
	bulk := slices.Max(plan.Streams)
	alone, err := s.RoundTrip(ctx, plan.Duration) // all at about the same time
	if err != nil {
		return err
	}
	l, err := s.RoundTripBeside(ctx, bulk, 0, plan.Duration)
	label := fmt.Sprintf("round trip beside %s", plural(bulk, "download"))
	rep.Latency(s.Name, label, l)
	if l.Count > 0 && alone.P99 > 0 {
		rep.Add(s.Name, label+", p99 ÷ alone", "×", float64(l.P99)/float64(alone.P99))
	}
	return err
}

func (s Subject) churn(ctx context.Context, plan Plan, rep *Report) error {
	perSecond, err := s.Churn(ctx, plan.Dialers, plan.Duration)
	if err != nil {
		return err
	}
	rep.Add(s.Name, fmt.Sprintf("connections, %s", plural(plan.Dialers, "dialer")), "1/s", perSecond)
	return nil
}

func (s Subject) idle(ctx context.Context, plan Plan, rep *Report) error {
	held, taken, err := s.holding(ctx, plan.Settle, func() (*Held, error) { return s.Idle(ctx, plan.Idle, plan.Rate) })
	if err != nil {
		return err
	}
	defer held.Close()
	rep.Add(s.Name, fmt.Sprintf("dial and first answer of %d connections, p99", plan.Idle), "ms", Milliseconds(held.Dial.P99))
	if len(s.PIDs) > 0 {
		rep.Add(s.Name, fmt.Sprintf("memory of each of %d idle", plan.Idle), "KB", float64(taken)/1e3/float64(plan.Idle))
	}
	return nil
}

func (s Subject) stalled(ctx context.Context, plan Plan, rep *Report) error {
	held, taken, err := s.holding(ctx, plan.Settle, func() (*Held, error) { return s.Stalled(ctx, plan.Stalled, stallSize) })
	if err != nil {
		return err
	}
	defer held.Close()
	l, err := s.RoundTrip(ctx, plan.Duration)
	beside := fmt.Sprintf("beside %s", plural(plan.Stalled, "stalled reader"))
	rep.Latency(s.Name, "round trip "+beside, l)
	if len(s.PIDs) > 0 {
		rep.Add(s.Name, "memory taken "+beside, "MB", float64(taken)/1e6)
	}
	return err
}

// holding opens connections, and returns how many bytes of memory the processes
// have taken for them.
func (s Subject) holding(ctx context.Context, settle time.Duration, open func() (*Held, error)) (held *Held, taken int64, err error) {
	before, err := s.resident(ctx, settle)
	if err != nil {
		return nil, 0, err
	}
	if held, err = open(); err != nil {
		return nil, 0, err
	}
	after, err := s.resident(ctx, settle)
	if err != nil {
		held.Close()
	}
	return held, after - before, err
}

// resident returns the memory of the processes once they are idle.
func (s Subject) resident(ctx context.Context, settle time.Duration) (int64, error) {
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	u, err := s.usage()
	return u.Resident, err
}
