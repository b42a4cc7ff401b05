package race

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// try is how one target behaves.
type try struct {
	after time.Duration
	err   error
	deaf  bool // does not heed its context
}

type record struct {
	mu        sync.Mutex
	started   []time.Duration
	discarded []int
}

// conn is the connection to a target.
type conn struct {
	target int
	*record
}

func (c conn) Close() error {
	c.discarded = append(c.discarded, c.target)
	return nil
}

func run(t *testing.T, tries []try) (won int, rec *record, took time.Duration, err error) {
	t.Helper()
	rec = new(record)
	start := time.Now()
	targets := make([]int, len(tries))
	for i := range targets {
		targets[i] = i
	}
	dial := func(ctx context.Context, i int) (conn, error) {
		rec.mu.Lock()
		rec.started = append(rec.started, time.Since(start))
		rec.mu.Unlock()
		if tries[i].deaf {
			time.Sleep(tries[i].after)
			return conn{i, rec}, tries[i].err
		}
		select {
		case <-time.After(tries[i].after):
			return conn{i, rec}, tries[i].err
		case <-ctx.Done():
			return conn{}, ctx.Err()
		}
	}
	_, won, err = Dial(t.Context(), targets, dial)
	return won, rec, time.Since(start), err
}

func TestDial(t *testing.T) {
	bad, worse := errors.New("bad"), errors.New("worse")
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		tries     []try
		won       int
		err       error
		took      time.Duration
		started   []time.Duration
		discarded []int
	}{
		"one":                  {[]try{{after: 10 * ms}}, 0, nil, 10 * ms, []time.Duration{0}, nil},
		"one fails":            {[]try{{err: bad}}, 0, bad, 0, []time.Duration{0}, nil},
		"first is quick":       {[]try{{after: 10 * ms}, {}}, 0, nil, 10 * ms, []time.Duration{0}, nil},
		"first hangs":          {[]try{{after: time.Hour}, {after: 10 * ms}}, 1, nil, 260 * ms, []time.Duration{0, 250 * ms}, nil},
		"failures do not wait": {[]try{{after: 5 * ms, err: bad}, {after: 5 * ms, err: worse}, {}}, 2, nil, 10 * ms, []time.Duration{0, 5 * ms, 10 * ms}, nil},
		"all fail":             {[]try{{after: 300 * ms, err: bad}, {err: worse}}, 0, bad, 300 * ms, []time.Duration{0, 250 * ms}, nil},
		"only four":            {[]try{{err: bad}, {err: worse}, {err: worse}, {err: worse}, {}}, 0, bad, 0, []time.Duration{0, 0, 0, 0}, nil},
		"late winner": {[]try{{after: 300 * ms, deaf: true}, {after: 10 * ms}}, 1, nil, 300 * ms,
			[]time.Duration{0, 250 * ms}, []int{0}},
		"fourth of four": {[]try{{after: time.Hour}, {after: time.Hour}, {after: time.Hour}, {}}, 3, nil, 750 * ms,
			[]time.Duration{0, 250 * ms, 500 * ms, 750 * ms}, nil},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			won, rec, took, err := run(t, c.tries)
			testutil.Equal(t, won, c.won, "the target")
			testutil.ErrorIs(t, err, c.err, "the error")
			testutil.Equal(t, took, c.took, "the time that it took")
			testutil.EqualSlices(t, rec.started, c.started, "started")
			testutil.EqualSlices(t, rec.discarded, c.discarded, "discarded")
		})
	}
}

// With many addresses the most telling error is returned, and a shortage of
// our own ends the race.
func TestMostTellingError(t *testing.T) {
	fail := func(f tunnel.Failure) error { return &tunnel.DialError{Failure: f} }
	slow, refused, theirs := fail(tunnel.FailTimeout), fail(tunnel.FailRefused), fail(tunnel.FailExhausted)
	none := tunnel.AsDialError("", &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)})
	noPort := &tunnel.DialError{Failure: tunnel.FailExhausted, Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}}
	reset := tunnel.AsDialError("", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNRESET)})
	var untrusted error = &tls.CertificateVerificationError{Err: errors.New("unknown authority")}
	for name, c := range map[string]struct {
		tries   []try
		target  int
		err     error
		started int
	}{
		"refused over timed out": {[]try{{err: slow}, {err: refused}, {err: slow}}, 1, refused, 3},
		"the first of equals":    {[]try{{after: time.Second, err: slow}, {err: slow}}, 0, slow, 2},
		"exhausted":              {[]try{{err: slow}, {err: none}, {}}, 1, none, 2},
		"exhausted at the end":   {[]try{{after: time.Hour}, {err: none}}, 1, none, 2},
		"beside one that comes":  {[]try{{after: 2 * Stagger, deaf: true}, {err: none}}, 0, nil, 2},
		"another errno":          {[]try{{err: reset}, {}}, 1, nil, 2},
		"no port to one of two":  {[]try{{err: noPort}, {}}, 1, nil, 2},
		"exhausted elsewhere":    {[]try{{err: theirs}, {}}, 1, nil, 2},
		"not even then":          {[]try{{err: slow}, {err: theirs}}, 1, theirs, 2},
		"beside one that works":  {[]try{{after: 2 * Stagger}, {err: theirs}}, 0, nil, 2},
		"refused after TCP":      {[]try{{err: refused}, {err: untrusted}}, 1, untrusted, 2},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			target, rec, took, err := run(t, c.tries)
			testutil.Holds(t, target == c.target && errors.Is(err, c.err) && len(rec.started) == c.started && took <= time.Minute,
				"target %d, %v, %d started, after %v", target, err, len(rec.started), took)
		})
	}
}

// A dial that is given up tries no more addresses.
func TestDialGivenUp(t *testing.T) {
	testutil.Bubble(t, "at once", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tried := 0
		_, _, err := Dial(ctx, []int{0, 1, 2}, func(ctx context.Context, _ int) (conn, error) {
			tried++
			cancel()
			return conn{}, ctx.Err()
		})
		testutil.ErrorIs(t, err, context.Canceled, "the error")
		testutil.Equal(t, tried, 1, "addresses tried")
	})
}

func TestDialNothing(t *testing.T) {
	_, _, err := Dial(t.Context(), nil, func(context.Context, int) (conn, error) { return conn{}, nil })
	testutil.Fails(t, err, "no target")
}
