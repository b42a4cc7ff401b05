package admin

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
)

// Different queries never share an answer.
func TestQueryKeysAreUnique(t *testing.T) {
	for _, pair := range [][2]url.Values{
		{{"role": {"agent,server"}}, {"role": {"server,agent"}}},
		{{"filter": {"x"}, "state": {"idle"}, "sort": {"id"}, "tenant": {"t state: sort:since tenant:y"}}, {"filter": {"x state:idle sort:id tenant:t"}, "tenant": {"y"}}},
	} {
		var keys [2]string
		for i, values := range pair {
			q := testutil.Must(parseQuery(values.Encode()))(t)
			keys[i] = q.key()
		}
		testutil.Holds(t, keys[0] != keys[1], "%v and %v are one question", pair[0], pair[1])
	}
}

// Fifty equal requests cost one answer for each sample, and no answer is older than the
// last sample.
func TestAnswersAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sample atomic.Uint64
		var made atomic.Int32
		s := newAnswerCache(sample.Load)
		round := func() (answers map[string]int) {
			var mu sync.Mutex
			var all sync.WaitGroup
			answers = map[string]int{}
			for range 50 {
				all.Go(func() {
					body := s.get(t.Context(), "", "same", func() any { time.Sleep(10 * time.Millisecond); return made.Add(1) })
					mu.Lock()
					defer mu.Unlock()
					answers[string(body)]++
				})
			}
			all.Wait()
			return answers
		}
		testutil.Equal(t, round()["1\n"], 50, "the first answers")
		testutil.Equal(t, round()["1\n"], 50, "made anew within one sample")
		sample.Add(1)
		testutil.Equal(t, round()["2\n"], 50, "after another sample")
		time.Sleep(sampleEvery) // a table that does not run
		testutil.Equal(t, round()["3\n"], 50, "after a while")
		time.Sleep(time.Second)
	})
}

// Answers take at most a quarter of one CPU.
func TestAnswersAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAnswerCache(func() uint64 { return 0 })
		start := time.Now()
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				s.get(t.Context(), "", fmt.Sprint(i), func() any { time.Sleep(10 * time.Millisecond); return i })
			})
		}
		all.Wait()
		testutil.AtLeast(t, time.Since(start), 39*40*time.Millisecond, "40 answers of 10 ms took")
		time.Sleep(time.Second)
	})
}

// A request that is cancelled before its turn does not cancel others.
func TestCancelledRequestKeepsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAnswerCache(func() uint64 { return 0 })
		other := new(admission.Ticket)
		testutil.NoError(t, s.turns.Wait(t.Context(), other)) // something else is being made
		ctx, leave := context.WithCancel(t.Context())
		var left, stayed []byte
		var all sync.WaitGroup
		all.Go(func() { left = s.get(ctx, "", "x", func() any { return 1 }) })
		synctest.Wait()
		all.Go(func() { stayed = s.get(t.Context(), "", "x", func() any { return 2 }) })
		synctest.Wait()
		leave()
		synctest.Wait()
		s.turns.Done(other)
		all.Wait()
		testutil.Holds(t, left == nil && string(stayed) == "2\n", "left with %q, stayed for %q", left, stayed)
		time.Sleep(time.Second)
	})
}

// A panic ends its request alone: net/http goes on, and later requests are answered.
func TestPanicDoesNotBlockAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAnswerCache(func() uint64 { return 0 })
		func() {
			defer func() { _ = recover() }()
			s.get(t.Context(), "", "x", func() any { panic("a defect") })
		}()
		ctx := testutil.Context(t)
		for _, key := range []string{"y", "x"} {
			testutil.Equal(t, string(s.get(ctx, "", key, func() any { return 1 })), "1\n", "%s is answered with", key)
		}
		time.Sleep(time.Second)
	})
}

// The history and the failures are rings of a fixed size.
func TestHistoryHasAFixedSize(t *testing.T) {
	testutil.AtMost(t, unsafe.Sizeof(history{}), 20<<10, "bytes of the history")
	table := NewTable()
	now := table.started
	grown := testing.AllocsPerRun(5*points, func() {
		now = now.Add(interval)
		table.record(now, [2]int64{})
	})
	testutil.Equal(t, grown, 0, "allocations of a point")
	testutil.Equal(t, len(table.history.list()), points, "points")
}
