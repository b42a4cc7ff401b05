package bench_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/bench"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// direct is a path without anything in between.
func direct(t *testing.T) bench.Path {
	t.Helper()
	return bench.Path{Name: "direct", Target: target(t), Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, f.Network, f.Address)
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), nil
	})}
}

// target serves one, and returns its address.
func target(t *testing.T) string {
	t.Helper()
	l := testutil.Listen(t)
	done := make(chan error, 1)
	go func() { done <- bench.ServeTarget(t.Context(), l) }()
	t.Cleanup(func() {
		testutil.Succeeds(t, <-done, "the target ends")
	})
	return l.Addr().String()
}

// short is a listener whose second connection finds no descriptor.
type short struct {
	net.Listener
	accepted bool
}

func (s *short) Accept() (net.Conn, error) {
	if s.accepted {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	s.accepted = true
	return s.Listener.Accept()
}

// A target that runs out of descriptors ends with that error, and closes its connections, so
// that no measurement waits for it.
func TestShortagesEndTargets(t *testing.T) {
	l := testutil.Listen(t)
	ended := make(chan error, 1)
	go func() { ended <- bench.ServeTarget(t.Context(), &short{Listener: l}) }()
	c := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer c.Close()
	testutil.ErrorIs(t, <-ended, syscall.EMFILE, "the target ended")
	testutil.ErrorIs(t, testutil.Err(c.Read(make([]byte, 1))), io.EOF, "its connection")
}

func TestBulkCountsEveryByte(t *testing.T) {
	p := direct(t)
	for _, d := range []bench.Direction{bench.Down, bench.Up} {
		got := testutil.Must(p.Bulk(t.Context(), d, 3, 1<<20+7))(t)
		testutil.Holds(t, got.Bytes == 3*(1<<20+7) && got.MBps() > 0, "%s: %+v", d, got)
	}
}

func TestBulkNoticesLostBytes(t *testing.T) {
	p := cut(t, 100<<10, 0)
	testutil.Fails(t, testutil.Err(p.Bulk(t.Context(), bench.Down, 1, 1<<20)), "a download that lost its end counts as good")
}

// cut is direct by cutters.
func cut(t *testing.T, left int, late time.Duration) bench.Path {
	p := direct(t)
	inner := p.Dialer
	p.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := inner.Dial(ctx, f)
		if err != nil {
			return nil, err
		}
		return tunnel.With(c, tunnel.Parts{In: tunnel.CopySource(&cutter{from: c, left: left, late: late})}), nil
	})
	return p
}

// cutter ends a connection in good order, but too early. What it reads comes late.
type cutter struct {
	from io.Reader
	left int
	late time.Duration
}

func (c *cutter) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, io.EOF
	}
	time.Sleep(c.late)
	n, err := c.from.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func TestSteady(t *testing.T) {
	t.Parallel()
	p := direct(t)
	for _, d := range []bench.Direction{bench.Down, bench.Up} {
		got, err := p.Steady(t.Context(), d, 2, 1100*time.Millisecond)
		for tries := 1; err == nil && got.MBps == 0 && tries < 30; tries++ { // in the last tenth of a second this machine did something else
			got, err = p.Steady(t.Context(), d, 2, 1100*time.Millisecond)
		}
		testutil.Holds(t, err == nil && got.Dialed > 0 && got.First > 0 && got.MBps > 0, "%s: %+v, %v", d, got, err)
	}
}

func TestWhatIsMeasured(t *testing.T) {
	p := direct(t)
	churn, err := p.Churn(t.Context(), 4, 20*time.Millisecond)
	testutil.Holds(t, err == nil && churn > 0, "churn %v, %v", churn, err)
	first, err := p.FirstByte(t.Context(), 3)
	testutil.Holds(t, err == nil && first.Count == 3 && first.P50 > 0 && first.P50 <= first.P99, "%+v, %v", first, err)
	idle, err := p.Idle(t.Context(), 30, 1000)
	testutil.Requires(t, err == nil && len(idle.Conns) == 30, "idle: %v", err)
	idle.Close()
	const late = 20 * time.Millisecond
	idle = testutil.Must(cut(t, 1<<10, late).Idle(t.Context(), 1, 0))(t)
	testutil.AtLeast(t, idle.Dial.P50, late, "the time until the first answer")
	idle.Close()
}

func TestFailingPath(t *testing.T) {
	p := bench.Path{Name: "nowhere", Target: "x:1", Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused}
	})}
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(p.Churn(t.Context(), 2, time.Second))), tunnel.FailRefused, "churn")
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(p.Idle(t.Context(), 100, 0))), tunnel.FailRefused, "idle")
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(p.Bulk(t.Context(), bench.Down, 2, 1))), tunnel.FailRefused, "down")
}

func TestProcesses(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc on this system")
	}
	u, err := bench.Processes(os.Getpid())
	testutil.Holds(t, err == nil && u.Resident >= 1<<20, "%+v, %v", u, err)
	testutil.Fails(t, testutil.Err(bench.Processes(1<<30)), "a process that does not exist has no usage")
}

func TestRunFillsEveryRow(t *testing.T) {
	p := direct(t)
	other := p
	other.Name = "again"
	plan := bench.Plan{
		Tests: bench.TestNames(), Runs: 2, Streams: []int{1, 2}, Size: 1 << 20,
		Duration: 5 * time.Millisecond, Dialers: 2, Idle: 3, Stalled: 2,
	}
	rep := testutil.Must(bench.Run(t.Context(), plan, []bench.Subject{{Path: p, PIDs: []int{os.Getpid()}}, {Path: other}}, func(string) {}))(t)
	for _, row := range rep.Rows {
		testutil.Equal(t, len(row.Values["direct"]), 2, "%s: values, one a round", row.Label)
	}
	var text, md bytes.Buffer
	testutil.NoError(t, errors.Join(rep.Table(&text, false), rep.Table(&md, true)))
	for _, want := range []string{"download, 1 stream", "CPU of upload, 2 streams", "round trip beside 2 downloads, p99 ÷ alone", "÷ again", "memory taken beside 2 stalled readers"} {
		testutil.Holds(t, strings.Contains(text.String(), want) && strings.Contains(md.String(), want),
			"no %q in the table:\n%s", want, text.String())
	}
	plan.Tests = []string{"nonsense"}
	testutil.Fails(t, testutil.Err(bench.Run(t.Context(), plan, nil, nil)), "an unknown test was accepted")
}

func TestMedian(t *testing.T) {
	row := &bench.Row{Values: map[string][]float64{"a": {3, 1, 2}, "b": {4, 1, 3, 2}}}
	a, b, c := row.Median("a"), row.Median("b"), row.Median("c")
	testutil.Holds(t, a == 2 && b == 2.5 && c == 0, "medians %v, %v, %v", a, b, c)
}

// A ratio does not depend on the machine's speed, which changes between rounds.
func TestRatio(t *testing.T) {
	row := &bench.Row{Values: map[string][]float64{"a": {2, 4, 30}, "b": {1, 4, 10}, "c": {2, 4}, "d": {0, 0, 0}}}
	for pair, want := range map[[2]string]float64{
		{"a", "b"}: 2, {"b", "a"}: 0.5, {"c", "b"}: 0.75, {"a", "d"}: 0, {"none", "b"}: 0, {"b", "none"}: 0,
	} {
		testutil.Equal(t, row.Ratio(pair[0], pair[1]), want, "%s ÷ %s is", pair[0], pair[1])
	}
}

// A run that is interrupted says so, and not what that broke.
func TestInterruptedRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	breaks := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		cancel()
		return nil, net.ErrClosed
	})
	plan := bench.Plan{Tests: []string{"rtt"}, Runs: 1, Duration: time.Minute}
	_, err := bench.Run(ctx, plan, []bench.Subject{{Path: bench.Path{Target: "x:1", Dialer: breaks}}}, func(string) {})
	testutil.ErrorIs(t, err, context.Canceled, "the run")
}
