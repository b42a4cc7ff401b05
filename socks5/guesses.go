package socks5

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// One address may be wrong guessBurst times at once and then once every
	// guessEvery; all that have not been right yet, together, ten times as
	// often. At this rate a password of ten letters cannot be guessed, and a
	// misconfigured client that keeps trying keeps no other out.
	guessBurst = 20
	guessEvery = 40 * time.Millisecond
	guessAll   = 10

	// guessWait is how long a check may wait for its turn: less than the
	// handshake's bound, and long enough for a client to get in beside one at
	// its own address that guesses on a hundred connections. A client that
	// would wait longer is refused without a check, after guessRefuse, so that
	// it does not come back at once.
	guessWait   = 5 * time.Second
	guessRefuse = time.Second

	// guessSources bounds how many addresses are remembered.
	guessSources = 4096
)

// guesses paces checks of passwords so that they cannot be found by trying.
// Only wrong ones count. A correct password waits for its turn like a wrong
// one: otherwise the time would reveal it, and guessing would need no turn. So
// clients that share an address share its pace.
type guesses struct {
	mu      sync.Mutex
	sources map[netip.Prefix]*guesser
	all     turns
}

// guesser is an address that has sent passwords.
type guesser struct {
	turns
	right bool // once
}

// turns is a stock of at most burst tries, which grows by one at regular
// intervals.
type turns struct{ full time.Time }

// take takes a try and returns how long to wait before making it.
func (t *turns) take(now time.Time, every time.Duration, burst int) (wait time.Duration) {
	if t.full.Before(now) {
		t.full = now
	}
	t.full = t.full.Add(every)
	return max(0, t.full.Sub(now)-time.Duration(burst)*every)
}

// giveBack undoes a take.
func (t *turns) giveBack(every time.Duration) { t.full = t.full.Add(-every) }

// turn is what a check has taken: of its address, and of all that have not been right yet.
type turn struct {
	of  *guesser
	all bool
}

// ask takes a turn for source, and returns how long the check has to wait for it; false means too
// long, and takes none. A turn of a check that was not made, or was right, is given back.
func (g *guesses) ask(source netip.Prefix, now time.Time) (t turn, wait time.Duration, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.of(source, now)
	t = turn{s, !s.right}
	wait = s.take(now, guessEvery, guessBurst)
	if t.all {
		wait = max(wait, g.all.take(now, guessEvery/guessAll, guessBurst*guessAll))
	}
	if wait > guessWait {
		g.giveBack(t)
		return turn{}, 0, false
	}
	return t, wait, true
}

// right gives back the turn of a password that was right.
func (g *guesses) right(t turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.giveBack(t)
	t.of.right = true
}

// withdraw gives back the turn of a check that was not made: that guessed nothing.
func (g *guesses) withdraw(t turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.giveBack(t)
}

func (g *guesses) giveBack(t turn) {
	t.of.giveBack(guessEvery)
	if t.all {
		g.all.giveBack(guessEvery / guessAll)
	}
}

// of returns the record of source, which it creates if need be. If there are
// too many, those that have all their tries left are forgotten, or else the
// newcomers share one record.
func (g *guesses) of(source netip.Prefix, now time.Time) *guesser {
	if s := g.sources[source]; s != nil {
		return s
	}
	for _, right := range []bool{false, true} { // sources that were right stay as long as there is room
		if len(g.sources) < guessSources {
			break
		}
		for known, s := range g.sources {
			if s.right == right && !s.full.After(now) {
				delete(g.sources, known)
			}
		}
	}
	if len(g.sources) >= guessSources {
		source = netip.Prefix{}
		if s := g.sources[source]; s != nil {
			return s
		}
	}
	if g.sources == nil {
		g.sources = map[netip.Prefix]*guesser{}
	}
	s := &guesser{}
	g.sources[source] = s
	return s
}
