package testutil

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// Patience bounds the wait for something that a correct program does at once. It
// is long enough for a busy machine, and only failing tests wait so long.
const Patience = time.Minute

// poll is the pause between two looks at a condition.
const poll = 2 * time.Millisecond

// Eventually returns once cond holds. It fails the test, naming what, if cond does
// not hold within Patience.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	Within(t, Patience, what, cond)
}

// Within is Eventually with another bound, in real or in fake time.
func Within(t testing.TB, bound time.Duration, what string, cond func() bool) {
	t.Helper()
	for start := time.Now(); !cond(); time.Sleep(poll) {
		if time.Since(start) >= bound {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// NoError ends the test if err is not nil. It may be in the loop of a benchmark, so Helper, which
// takes longer than the rest, is called for a failure alone.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Context returns a context that ends after Patience, and with the test.
func Context(t testing.TB) context.Context {
	t.Helper()
	return ContextFor(t, Patience)
}

// ContextFor is Context with another bound.
func ContextFor(t testing.TB, bound time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// Receive returns the next value from c, or of a channel of struct{} that it was closed, which
// is as good a signal. It fails the test, naming what, if none comes within Patience, or if a
// channel of values was closed without one.
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v, open := <-c:
		if _, signal := any(v).(struct{}); !open && !signal {
			t.Fatalf("its channel was closed without a value: %s", what)
		}
		return v
	case <-time.After(Patience):
		t.Fatalf("not within %v: %s", Patience, what)
	}
	panic("unreachable")
}

// Must returns a function that returns v, and fails the test if there is an error:
// testutil.Must(net.Listen("tcp", address))(t).
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return v
	}
}

// Opened is Must, and closes the value when the test ends.
func Opened[T io.Closer](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		t.Cleanup(func() { _ = v.Close() })
		return v
	}
}

// Bubble runs f as a subtest in fake time, as synctest.Test has it.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// Each runs f as a subtest for each of the cases, by their names.
func Each[C any](t *testing.T, cases map[string]C, f func(*testing.T, C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { f(t, c) })
	}
}

// EachOf is Each for cases that are their own names.
func EachOf[C any](t *testing.T, cases []C, f func(*testing.T, C)) {
	t.Helper()
	for _, c := range cases {
		t.Run(fmt.Sprint(c), func(t *testing.T) { f(t, c) })
	}
}

// EachInBubble is Each in fake time, as Bubble has it.
func EachInBubble[C any](t *testing.T, cases map[string]C, f func(*testing.T, C)) {
	t.Helper()
	for name, c := range cases {
		Bubble(t, name, func(t *testing.T) { f(t, c) })
	}
}

// Later calls f beside the test. The channel gets what it returns.
func Later[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

// Start runs f beside the test, until stop is called or the test ends. Both end f's context, and
// wait for f.
func Start(t testing.TB, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// Settled is m for goleak.VerifyTestMain, which waits less than half a second for the
// last goroutines to end: on a busy machine they can take longer.
func Settled(m goleak.TestingM) goleak.TestingM { return settled{m} }

type settled struct{ goleak.TestingM }

// Run runs the tests. If they pass, it waits for at most Patience until no goroutine is
// left.
func (s settled) Run() int {
	status := s.TestingM.Run()
	for start := time.Now(); status == 0 && goleak.Find() != nil && time.Since(start) < Patience; {
	}
	return status
}
