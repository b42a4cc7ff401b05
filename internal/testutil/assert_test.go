package testutil

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// recorder is a test that keeps its failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

func (r *recorder) Fatalf(format string, a ...any) {
	r.Errorf(format, a...)
	panic(r)
}

// said are the failures of a test.
func said(t *testing.T, test func(testing.TB)) []string {
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		test(r)
	}()
	return r.failures
}

// A check that holds prints nothing. One that does not names both values.
func TestAssertions(t *testing.T) {
	EqualSlices(t, said(t, func(t testing.TB) {
		Equal(t, 1, 1, "n")
		EqualSlices(t, nil, []string{}, "s")
		Holds(t, true, "it")
		Requires(t, true, "it")
		Between(t, 1, 1, 1, "n")
		Contains(t, "abc", "b", "s")
		Succeeds(t, nil, "it")
		Fails(t, io.EOF, "it")
		ErrorIs(t, errors.Join(io.EOF), io.EOF, "it")
		ErrorSays(t, io.EOF, "EO", "it")
		ErrorSays(t, nil, "", "it")
	}), nil, "of checks that hold")
	EqualSlices(t, said(t, func(t testing.TB) {
		Equal(t, 1, 2, "n of %s", "a")
		Equal(t, "", "x", "s")
		EqualSlices(t, []string{"a"}, []string{"b"}, "s")
		Holds(t, false, "%d of it", 1)
		Between(t, 1, 2, 3, "n")
		Between(t, 4, 2, 3, "n")
		Contains(t, "abc", "d", "s")
		Succeeds(t, io.EOF, "it")
		Fails(t, Err(1, nil), "it")
		ErrorIs(t, nil, io.EOF, "it")
		ErrorSays(t, io.EOF, "x", "it")
		ErrorSays(t, io.EOF, "", "it")
		Requires(t, false, "%s", "it ends")
		t.Error("it goes on")
	}), []string{
		"n of a: got 1, want 2", `s: got "", want "x"`, `s: got ["a"], want ["b"]`, "1 of it",
		"n: got 1, want 2 at least", "n: got 4, want 3 at most", `s: "abc" lacks "d"`, "it: EOF", "it: no error",
		"it: got <nil>, want EOF", `it: got EOF, want an error that says "x"`, "it: EOF", "it ends",
	}, "of checks that do not")
}
