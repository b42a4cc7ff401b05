package main

import (
	"strings"
	"testing"
)

func TestBenchUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--runs=0":              "--runs",
		"--size=0":              "--size",
		"--size=17592186044417": "--size 17592186044417: want 1048576 at most",
		"--streams=0":           "--streams 0: must be at least 1",
		"--duration=-1s":        "--duration must be positive",
		"--rate=-3":             "--rate",
		"--settle=-1s":          "--settle",
		"--tests=":              "--tests=: no test: want some of down,up",
		"--tests=down,fly":      `--tests=down,fly: no test "fly": want some of down,up`,
		"--pids=direct":         "--pids",
		"--via=x://y":           "--via",
	} {
		if status, _, stderr := konnectivity("bench", args); status != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %q, want %q", args, status, stderr, want)
		}
	}
}
