package uplink

import (
	"math/rand/v2"
	"time"

	"konnectivity/internal/peers"
)

const (
	// firstPause and maxPause bound the wait before a link that could not be
	// made is tried again; it doubles and is jittered, so that the sidecars
	// of a cluster do not come back all at once.
	firstPause = 250 * time.Millisecond
	maxPause   = 15 * time.Second

	// probeEvery is the pause between two handshakes with a server without links,
	// for readiness, and because one with links may have replaced it.
	probeEvery = 30 * time.Second

	// shortLife is the age below which a link that ends counts as one more
	// failure, or a server that accepts and hangs up would be stormed.
	shortLife = 10 * time.Second

	// redialSpread spreads the first attempt after a link was cut. A dial that finds
	// no link does not wait for it.
	redialSpread = 100 * time.Millisecond

	// forgivenLosses is how many short links to one address are redialed so soon,
	// plus one more every 5 s: the link that is left may be to a server that has
	// just lost the agent.
	forgivenLosses = 64

	// maxPerAddress is how many links go to one address that several servers
	// are behind: two, so that one is left when the other's server goes.
	maxPerAddress = 2
)

// policy keeps a link to each address, and two where several servers are behind
// the only one. It is for a client that keeps to so many servers (0: to all).
func policy(most int, client string) peers.Policy {
	return peers.Policy{
		Backoff:   peers.Backoff{Base: firstPause, Limit: maxPause, Growth: 2},
		ShortLife: shortLife, Spread: redialSpread, Losses: forgivenLosses, Wary: true,
		MaxSearch: 1, ByAddress: true, Most: most, Client: client,
		Want: func(heard, addresses int) int {
			if addresses == 1 && heard > 1 {
				return maxPerAddress
			}
			return 1
		},
	}
}

// resolveEvery spreads look-ups. Those that fail while a server is missing are made again sooner
// than addresses are too old.
func resolveEvery(complete bool, err error) time.Duration {
	every := refreshEvery
	if err != nil && !complete {
		every = maxPause / 3
	}
	return every + rand.N(every/5)
}
