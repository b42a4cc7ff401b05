package resume

import (
	"time"

	"konnectivity/tunnel"
)

const (
	// settled is how long a carrier lasts that shows a way to the peer. Of those that are
	// lost sooner, each that follows another is waited for longer.
	settled = 2 * time.Second

	// longestPause is the longest wait for a carrier while none brings anything. The peer
	// waits for it too, so it is never more than a quarter of the window.
	longestPause = 5 * time.Second

	// mostVain is how many carriers in a row may bring nothing before an opener ends the
	// connection. With the waits between them, that takes some 20 s at the least.
	mostVain = 16

	// mostVainAccepted is the same for an acceptor. An opener that does not hear the answers
	// tries up to four times a second for as long as its window, and each try is a carrier
	// here.
	mostVainAccepted = 256
)

// churn bounds how often a connection is resumed by a peer that ends each carrier at once.
// It begins with the first carrier that the connection is resumed by.
type churn struct {
	at     tunnel.Moment // when the present carrier came; 0: it is the first of all
	useful bool          // it has brought something: a byte, an end or an acknowledgement
	brief  uint16        // carriers in a row, up to now, that were lost before they settled
	vain   uint16        // carriers in a row, up to now, that brought nothing
}

// resumed notes a carrier that the connection goes on by.
func (c *churn) resumed(now time.Time) { c.at, c.useful = tunnel.At(now), false }

// brought notes progress, by the present carrier or, as the next one tells, by the one before.
func (c *churn) brought() { c.useful, c.vain = true, 0 }

// lost notes that the present carrier is lost. An idle connection is not in vain on a
// carrier that settled, but one is that was left and has only its last bytes to deliver.
func (c *churn) lost(now time.Time, left bool) {
	lasted := tunnel.At(now)-c.at >= tunnel.Moment(settled)
	switch {
	case c.at == 0 || lasted && !left:
		c.brief, c.vain = 0, 0
		return
	case lasted:
		c.brief = 0
	default:
		c.brief++
	}
	if !c.useful {
		c.vain++
	}
}

// pause returns how long to wait for the next carrier, where the window is so long.
func (c *churn) pause(window time.Duration) (wait time.Duration) {
	if c.brief > 0 {
		wait = pauseOf(int(c.brief) - 1)
	}
	if c.vain > 0 {
		wait = max(wait, min(firstPause<<min(c.vain-1, 10), longestPause, window/4))
	}
	return wait
}
