package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// must returns what a call has returned, and ends the test if the call failed.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	requires(t, err == nil, "%v", err)
}

// eventually waits for up to a minute until something works, as a probe does.
func eventually(t *testing.T, what string, works func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := works()
		if err == nil {
			return
		}
		requires(t, time.Now().Before(deadline), "%s: %v", what, err)
	}
}

// withOutput adds what a command has printed to its error; nil stays nil.
func withOutput(err error, out string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", err, out)
}

// equal fails t unless got is want. The message begins with the format what and its args.
func equal[T comparable](t *testing.T, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %#v, want %#v", fmt.Sprintf(what, args...), got, want)
	}
}

// holds fails t unless a condition holds.
func holds(t *testing.T, condition bool, what string, args ...any) {
	t.Helper()
	if !condition {
		t.Errorf(what, args...)
	}
}

// requires is holds that ends the test.
func requires(t *testing.T, condition bool, what string, args ...any) {
	t.Helper()
	if !condition {
		t.Fatalf(what, args...)
	}
}

// contains fails t unless text has part in it.
func contains(t *testing.T, text, part, what string, args ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: no %q in\n%s", fmt.Sprintf(what, args...), part, text)
	}
}

// there wants a file to be there, or not to be.
func there(t *testing.T, path string, want bool) {
	t.Helper()
	_, err := os.Stat(path)
	if (err == nil) != want || err != nil && !os.IsNotExist(err) {
		t.Errorf("%s: %v, want it to be there: %v", path, err, want)
	}
}
