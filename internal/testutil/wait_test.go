package testutil

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

// A case that is not run would go unnoticed elsewhere.
func TestEach(t *testing.T) {
	ran := map[string]int{}
	note := func(t *testing.T, c int) { ran[t.Name()] += c }
	Each(t, map[string]int{"a": 1}, note)
	EachOf(t, []int{2}, note)
	EachInBubble(t, map[string]int{"c": 3}, note)
	Holds(t, maps.Equal(ran, map[string]int{"TestEach/a": 1, "TestEach/2": 2, "TestEach/c": 3}), "ran %v", ran)
}

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(f func(testing.TB)) bool { // and ends its test
			ended := true
			said(t, func(t testing.TB) { f(t); ended = false })
			return ended
		}
		start := time.Now()
		late := func() bool { return time.Since(start) >= time.Second }
		Holds(t, !fails(func(t testing.TB) { Eventually(t, "late", late) }), "it failed")
		AtMost(t, time.Since(start), 2*time.Second, "a condition that holds after a second took")
		start = time.Now()
		never := func() bool { return false }
		Holds(t, fails(func(t testing.TB) { Within(t, time.Minute, "never", never) }), "it never failed")
		AtLeast(t, time.Since(start), time.Minute, "a condition that never holds took")
		Equal(t, Receive(t, "seven", Later(func() int { return 7 })), 7, "received")
		c := make(chan int)
		nothing := func(t testing.TB) { Receive(t, "nothing", c) }
		Holds(t, fails(nothing), "received nothing, without failing")
		close(c)
		Holds(t, fails(nothing), "received from a closed channel, without failing")
		begun := make(chan struct{})
		waits := func(t testing.TB) { Receive(t, "a signal", begun) }
		Holds(t, fails(waits), "received no signal, without failing")
		close(begun)
		Holds(t, !fails(waits), "a closed channel is no signal")
	})
}
