package socks5

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

func newCredentials(t *testing.T) *Credentials {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users")
	testutil.NoError(t, os.WriteFile(file, []byte("anna:secret\n"), 0o600))
	return testutil.Must(LoadCredentials(file, logging.Silent()))(t)
}

func from(address string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}

// Who guesses gets a few tries and then some a second, from one address as from
// many, and nobody with a password waits for that.
func TestGuessesArePaced(t *testing.T) {
	const paced = guessBurst + int((time.Minute+guessWait)/guessEvery) + 1
	for name, c := range map[string]struct {
		source func(i int) net.Addr
		most   int // passwords looked at in a minute
	}{
		"one address":     {func(int) net.Addr { return from("10.0.0.1:1") }, paced},
		"an IPv6 network": {func(i int) net.Addr { return from(fmt.Sprintf("[2001:db8::%x]:1", i+1)) }, paced},
		"many addresses":  {func(i int) net.Addr { return from(fmt.Sprintf("10.1.%d.%d:1", i/250, i%250)) }, guessAll * paced},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			c0 := newCredentials(t)
			testutil.Equal(t, c0.Check(t.Context(), from("10.9.9.9:1"), "anna", "secret"), true, "anna is let in")
			start := time.Now()
			var wg sync.WaitGroup
			var mu sync.Mutex
			looked := 0
			for i := range 200 {
				wg.Go(func() {
					for time.Since(start) < time.Minute {
						before := time.Now()
						_, _, ok := c0.guesses.ask(admission.SourceOf(c.source(i)), before)
						if ok {
							mu.Lock()
							looked++
							mu.Unlock()
						}
						time.Sleep(100 * time.Millisecond)
					}
				})
			}
			for range 50 {
				time.Sleep(time.Second)
				now := time.Now()
				testutil.Equal(t, c0.Check(t.Context(), from("10.9.9.9:2"), "anna", "secret"), true, "anna is let in")
				testutil.Equal(t, time.Since(now), 0, "her wait, who guessed nothing")
			}
			wg.Wait()
			testutil.AtMost(t, looked, c.most, "passwords looked at in a minute")
		})
	}
}

// Right passwords cost no turn, even if several from one address are checked at once.
func TestRightPasswordsCostNothing(t *testing.T) {
	var g guesses
	now, source := time.Now(), admission.SourceOf(from("10.0.0.1:1"))
	var turns []turn
	for range 3 {
		t, _, _ := g.ask(source, now)
		turns = append(turns, t)
	}
	for _, taken := range turns {
		g.right(taken)
	}
	testutil.Equal(t, g.all.full.Sub(now), 0, "how far all turns are ahead")
	testutil.Equal(t, g.sources[source].full.Sub(now), 0, "how far those of the address are ahead")
}

// Check waits for its turn, and refuses what would wait too long, right or wrong.
func TestCheckWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentials(t)
		at := from("10.0.0.1:1")
		for range guessBurst {
			testutil.Equal(t, c.Check(t.Context(), at, "anna", "wrong"), false, "wrong is right")
		}
		start := time.Now()
		testutil.Equal(t, c.Check(t.Context(), at, "anna", "secret"), true, "secret is right")
		testutil.Equal(t, time.Since(start), guessEvery, "the wait")
		var wg sync.WaitGroup
		for range 2 * int(guessWait/guessEvery) {
			wg.Go(func() { c.Check(t.Context(), at, "anna", "wrong") })
		}
		synctest.Wait()
		start = time.Now()
		testutil.Equal(t, c.Check(t.Context(), at, "anna", "secret"), false, "a full queue takes more")
		testutil.Equal(t, time.Since(start), guessRefuse, "time until it refuses")
		wg.Wait()
		time.Sleep(time.Minute)
		start = time.Now()
		for range 1000 { // right ones cost nothing
			testutil.Equal(t, c.Check(t.Context(), at, "anna", "secret"), true, "secret is right")
		}
		testutil.Equal(t, time.Since(start), 0, "the wait of a thousand right ones")
	})
}

// A check that waits ends with its context, and so does a refusal.
func TestCheckEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentials(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 * int(guessWait/guessEvery) {
			wg.Go(func() { c.Check(ctx, from("10.0.0.1:1"), "anna", "wrong") })
		}
		synctest.Wait()
		start := time.Now()
		cancel()
		wg.Wait()
		testutil.Equal(t, time.Since(start), 0, "time that they went on for")
		// Clients that left have guessed nothing, so their turns are free again.
		testutil.Equal(t, c.guesses.all.full.Sub(start), guessBurst*guessEvery/guessAll, "how far all turns are ahead")
		testutil.Equal(t, c.Check(t.Context(), from("10.0.0.1:1"), "anna", "secret"), true, "anna is let in")
		testutil.AtMost(t, time.Since(start), guessEvery, "the next one's wait")
	})
}

// Who has a password gets in beside one at the same address that guesses on many
// connections.
func TestAnAddressIsNotLockedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentials(t)
		at := from("127.0.0.1:1")
		end := time.Now().Add(time.Minute)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for time.Now().Before(end) {
					c.Check(t.Context(), at, "anna", "wrong")
				}
			})
		}
		for range 10 {
			time.Sleep(time.Second)
			if start := time.Now(); !c.Check(t.Context(), at, "anna", "secret") || time.Since(start) > guessWait {
				t.Errorf("anna is refused, or waits %v", time.Since(start))
			}
		}
		wg.Wait()
	})
}

// Addresses without end are no way around it, and cost no memory without end.
func TestGuessersAreBounded(t *testing.T) {
	var g guesses
	now := time.Now()
	looked := 0
	for i := range 10 * guessSources {
		if _, _, ok := g.ask(admission.SourceOf(from(fmt.Sprintf("%d.%d.%d.1:1", 1+i/65536, i/256%256, i%256))), now); ok {
			looked++
		}
	}
	testutil.AtMost(t, len(g.sources), guessSources+1, "addresses that are remembered")
	testutil.AtMost(t, looked, guessAll*(guessBurst+int(guessWait/guessEvery)), "passwords looked at")
}
