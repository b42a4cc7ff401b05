package testutil

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The assertions of this file report a failure, and the test goes on; Requires ends it. A message
// begins with the format what and its args.

// Equal fails t unless got is want.
func Equal[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", fmt.Sprintf(what, args...), show(got), show(want))
	}
}

// EqualSlices is Equal for slices.
func EqualSlices[T comparable](t testing.TB, got, want []T, what string, args ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %s, want %s", fmt.Sprintf(what, args...), show(got), show(want))
	}
}

// Holds fails t unless a condition holds.
func Holds(t testing.TB, condition bool, what string, args ...any) {
	if !condition {
		t.Helper() // only on failure: it costs more than the check
		t.Errorf(what, args...)
	}
}

// Requires is Holds that ends the test.
func Requires(t testing.TB, condition bool, what string, args ...any) {
	if !condition {
		t.Helper()
		t.Fatalf(what, args...)
	}
}

// AtMost fails t if got is more than most.
func AtMost[T cmp.Ordered](t testing.TB, got, most T, what string, args ...any) {
	t.Helper()
	if got > most {
		t.Errorf("%s: got %s, want %s at most", fmt.Sprintf(what, args...), show(got), show(most))
	}
}

// AtLeast fails t if got is less than least.
func AtLeast[T cmp.Ordered](t testing.TB, got, least T, what string, args ...any) {
	t.Helper()
	if got < least {
		t.Errorf("%s: got %s, want %s at least", fmt.Sprintf(what, args...), show(got), show(least))
	}
}

// Between fails t unless got is from least to most.
func Between[T cmp.Ordered](t testing.TB, got, least, most T, what string, args ...any) {
	t.Helper()
	AtLeast(t, got, least, what, args...)
	AtMost(t, got, most, what, args...)
}

// Contains fails t unless text has part in it.
func Contains(t testing.TB, text, part, what string, args ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: %q lacks %q", fmt.Sprintf(what, args...), text, part)
	}
}

// Succeeds fails t if err is an error.
func Succeeds(t testing.TB, err error, what string, args ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// Fails fails t unless err is an error.
func Fails(t testing.TB, err error, what string, args ...any) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", fmt.Sprintf(what, args...))
	}
}

// ErrorIs fails t unless err is target, as errors.Is has it.
func ErrorIs(t testing.TB, err, target error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", fmt.Sprintf(what, args...), err, target)
	}
}

// ErrorSays fails t unless err is an error with a text in it. The text "" wants no error.
func ErrorSays(t testing.TB, err error, text, what string, args ...any) {
	t.Helper()
	switch {
	case text == "":
		Succeeds(t, err, what, args...)
	case err == nil || !strings.Contains(err.Error(), text):
		t.Errorf("%s: got %v, want an error that says %q", fmt.Sprintf(what, args...), err, text)
	}
}

// Err returns the second of two results, for the functions above.
func Err[T any](_ T, err error) error { return err }

// show returns a value as a message has it, texts in quotes.
func show(v any) string {
	switch v.(type) {
	case string, []string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("%+v", v)
}
