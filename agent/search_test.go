package agent

import (
	"fmt"
	"testing"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/internal/testutil"
)

// attemptsIn counts the attempts of a while, in fake time.
func attemptsIn(w *world, d time.Duration) int {
	start := time.Now()
	time.Sleep(d)
	return w.attemptsSince(start)
}

// A server may tell any count: the search for servers that are not there is
// short, and slows down to some attempts a minute, behind one address or many.
func TestSearchBoundsAnyCount(t *testing.T) {
	for _, count := range []int{5, 1000, 2_000_000_000} {
		for _, addresses := range []int{1, 8} {
			t.Run(fmt.Sprint(count, " at ", addresses), func(t *testing.T) {
				w := newWorld()
				var servers []string
				for i := range addresses {
					servers = append(servers, fmt.Sprintf("10.0.0.%d:8091", i+1))
					w.balance(servers[i], "a")
				}
				w.start("a")
				w.setCount(count)
				inWorld(t, w, servers, nil, func(b *bench) {
					begin := time.Now()
					b.within(time.Second, "a")
					testutil.AtMost(t, attemptsIn(w, time.Minute), peers.SearchBurst+60, "attempts in the first minute")
					time.Sleep(30 * time.Minute)
					testutil.AtMost(t, attemptsIn(w, 10*time.Minute), 100*addresses,
						"attempts in ten minutes after half an hour in vain")
					// One stretch alone may also use an earlier allowance.
					seconds := int(time.Since(begin) / time.Second)
					testutil.AtMost(t, w.attemptsSince(begin), peers.SearchBurst+seconds+addresses,
						"attempts in %d seconds", seconds)
				})
			})
		}
	}
}

// Neither a count that goes up and down nor servers that come with a new id each
// time, and leave, make the agent search at more than its pace.
func TestSearchRateIsBounded(t *testing.T) {
	t.Run("count", func(t *testing.T) {
		w := newWorld()
		w.protocol = protocolLink
		inWorld(t, w, balanced(w, "a"), nil, func(b *bench) {
			b.within(time.Second, "a")
			start := time.Now()
			for i := range 600 {
				w.setCount(1 + 1000*(i%2))
				time.Sleep(time.Second)
			}
			testutil.AtMost(t, w.attemptsSince(start), peers.SearchBurst+600, "attempts in ten minutes")
		})
	})
	t.Run("ids", func(t *testing.T) {
		w := newWorld()
		var ids []string
		for i := range 4 * maxServers {
			ids = append(ids, fmt.Sprint("s", i))
		}
		servers := balanced(w, ids...)
		inWorld(t, w, servers, nil, func(b *bench) {
			start := time.Now()
			for range 10 {
				time.Sleep(time.Minute)
				w.stop(ids...)
				w.start(ids...)
			}
			testutil.AtMost(t, w.attemptsSince(start), peers.SearchBurst+600+60, "attempts in ten minutes")
			time.Sleep(time.Hour)
			testutil.AtMost(t, len(b.agent.Servers()), maxServers+maxSearch, "servers are connected")
		})
	})
}
