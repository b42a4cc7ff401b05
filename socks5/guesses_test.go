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
	c := testutil.Must(LoadCredentials(file, logging.Silent()))(t)
	return c
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c0 := newCredentials(t)
				if !c0.Check(t.Context(), from("10.9.9.9:1"), "anna", "secret") {
					t.Fatal("anna is refused")
				}
				start := time.Now()
				var wg sync.WaitGroup
				var mu sync.Mutex
				looked := 0
				for i := range 200 {
					wg.Go(func() {
						for time.Since(start) < time.Minute {
							before := time.Now()
							_, ok := c0.guesses.ask(admission.SourceOf(c.source(i)), before)
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
					if !c0.Check(t.Context(), from("10.9.9.9:2"), "anna", "secret") || time.Since(now) > 0 {
						t.Error("anna has to wait, who guessed nothing")
					}
				}
				wg.Wait()
				if looked > c.most {
					t.Errorf("%d passwords looked at in a minute, want %d at most", looked, c.most)
				}
			})
		})
	}
}

// Check waits for its turn, and refuses what would wait too long, right or wrong.
func TestCheckWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCredentials(t)
		at := from("10.0.0.1:1")
		for range guessBurst {
			if c.Check(t.Context(), at, "anna", "wrong") {
				t.Fatal("wrong is right")
			}
		}
		start := time.Now()
		if !c.Check(t.Context(), at, "anna", "secret") || time.Since(start) != guessEvery {
			t.Errorf("after %v", time.Since(start))
		}
		var wg sync.WaitGroup
		for range 2 * int(guessWait/guessEvery) {
			wg.Go(func() { c.Check(t.Context(), at, "anna", "wrong") })
		}
		synctest.Wait()
		start = time.Now()
		if c.Check(t.Context(), at, "anna", "secret") || time.Since(start) != guessRefuse {
			t.Errorf("a full queue takes more, or refuses after %v", time.Since(start))
		}
		wg.Wait()
		time.Sleep(time.Minute)
		for range 1000 { // right ones cost nothing
			if start := time.Now(); !c.Check(t.Context(), at, "anna", "secret") || time.Since(start) > 0 {
				t.Fatal("a right password has to wait")
			}
		}
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
		if took := time.Since(start); took > 0 {
			t.Errorf("they went on for %v", took)
		}
		// Clients that left have guessed nothing, so their turns are free again.
		if ahead := c.guesses.all.full.Sub(start); ahead != guessBurst*guessEvery/guessAll {
			t.Errorf("the turns of all addresses together are %v ahead, want those of %d guesses", ahead, guessBurst)
		}
		if !c.Check(t.Context(), from("10.0.0.1:1"), "anna", "secret") || time.Since(start) > guessEvery {
			t.Errorf("the next one waits for %v", time.Since(start))
		}
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
		if _, ok := g.ask(admission.SourceOf(from(fmt.Sprintf("%d.%d.%d.1:1", 1+i/65536, i/256%256, i%256))), now); ok {
			looked++
		}
	}
	if len(g.sources) > guessSources+1 {
		t.Errorf("%d addresses are remembered", len(g.sources))
	}
	if most := guessAll * (guessBurst + int(guessWait/guessEvery)); looked > most {
		t.Errorf("%d passwords looked at, want %d at most", looked, most)
	}
}
