package testutil

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// A check that holds prints nothing. One that does not names both values.
func TestAssertions(t *testing.T) {
	wrapped := errors.Join(io.EOF)
	for name, c := range map[string]struct {
		right, wrong func(t testing.TB)
		says         string
	}{
		"Equal": {
			func(t testing.TB) { Equal(t, 1, 1, "n") }, func(t testing.TB) { Equal(t, 1, 2, "n of %s", "a") }, "n of a: got 1, want 2",
		},
		"Equal, of texts": {
			func(t testing.TB) { Equal(t, "", "", "s") }, func(t testing.TB) { Equal(t, "", "x", "s") }, `s: got "", want "x"`,
		},
		"EqualSlices": {
			func(t testing.TB) { EqualSlices(t, nil, []string{}, "s") },
			func(t testing.TB) { EqualSlices(t, []string{"a"}, []string{"b"}, "s") }, `s: got ["a"], want ["b"]`,
		},
		"Contains": {
			func(t testing.TB) { Contains(t, "abc", "b", "s") }, func(t testing.TB) { Contains(t, "abc", "d", "s") }, `s: "abc" lacks "d"`,
		},
		"Succeeds": {
			func(t testing.TB) { Succeeds(t, nil, "it") }, func(t testing.TB) { Succeeds(t, io.EOF, "it") }, "it: EOF",
		},
		"Fails": {
			func(t testing.TB) { Fails(t, io.EOF, "it") }, func(t testing.TB) { Fails(t, Err(1, nil), "it") }, "it: no error",
		},
		"ErrorIs": {
			func(t testing.TB) { ErrorIs(t, wrapped, io.EOF, "it") },
			func(t testing.TB) { ErrorIs(t, nil, io.EOF, "it") }, "it: got <nil>, want EOF",
		},
		"ErrorSays": {
			func(t testing.TB) { ErrorSays(t, io.EOF, "EO", "it") },
			func(t testing.TB) { ErrorSays(t, io.EOF, "x", "it") }, `it: got EOF, want an error that says "x"`,
		},
		"ErrorSays, nothing": {
			func(t testing.TB) { ErrorSays(t, nil, "", "it") }, func(t testing.TB) { ErrorSays(t, io.EOF, "", "it") }, "it: EOF",
		},
	} {
		r := &recorder{TB: t}
		if c.right(r); len(r.failures) > 0 {
			t.Errorf("%s: complained: %q", name, r.failures)
		}
		if c.wrong(r); strings.Join(r.failures, "\n") != c.says {
			t.Errorf("%s: said %q, want %q", name, r.failures, c.says)
		}
	}
}
