package line

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// Config is what a line is like, the same both ways but for HoleB. The zero value carries
// everything at once.
type Config struct {
	Delay time.Duration // one way
	Rate  float64       // bits per second; 0: no bound
	Queue int           // bytes that may wait for the line; 0: DefaultQueue of the rest
	Loss  float64       // the part of packets that the line loses, 0 to 1
	Seed  uint64        // decides which packets are lost; the same seed loses the same ones
	MTU   int           // bytes of its largest packets, up to 65535; 0: Ethernet's 1500, which most lines have
	Hole  int           // packets of more bytes are lost, though MTU allows them; 0: none
	HoleB bool          // only those to B
}

func (c Config) mtu() int {
	if c.MTU == 0 {
		return 1500
	}
	return c.MTU
}

// minQueue is what even a short line can queue: some 40 full packets.
const minQueue = 64 << 10

// DefaultQueue is one bandwidth-delay product, as routers have it.
func (c Config) DefaultQueue() int {
	return max(minQueue, int(c.Rate/8*2*c.Delay.Seconds()))
}

// Verdict is what becomes of a packet.
type Verdict int

// The verdicts.
const (
	Carried Verdict = iota
	Lost            // by the line
	Dropped         // by the queue, which was full
	Cut             // the line is cut; not a Shaper's
)

// Shaper is one direction of a line: a queue, a sender at the line's rate, and
// the line's delay. It has no clock: callers bring the time, which must not run
// backwards.
type Shaper struct {
	cfg    Config
	random *rand.Rand
	free   time.Time // when all that was queued has been sent
}

// NewShaper returns an idle direction. stream tells apart those of one seed.
func NewShaper(cfg Config, stream uint64) *Shaper {
	cfg.Queue = cmp.Or(cfg.Queue, cfg.DefaultQueue())
	return &Shaper{cfg: cfg, random: rand.New(rand.NewPCG(cfg.Seed, stream))}
}

// Admit says what becomes of a packet of so many bytes that arrives now, and
// when it comes out at the far end. What is admitted comes out in order.
func (s *Shaper) Admit(now time.Time, size int) (due time.Time, v Verdict) {
	if s.free.Before(now) {
		s.free = now
	}
	if s.cfg.Rate > 0 {
		if s.queued(now)+size > s.cfg.Queue {
			return time.Time{}, Dropped
		}
		s.free = s.free.Add(time.Duration(float64(size) * 8 / s.cfg.Rate * float64(time.Second)))
	}
	// A lost packet has taken its time on the line like any other.
	if s.random.Float64() < s.cfg.Loss || s.cfg.Hole > 0 && size > s.cfg.Hole {
		return time.Time{}, Lost
	}
	return s.free.Add(s.cfg.Delay), Carried
}

// queued returns the number of bytes that wait for the line, with the packet that is
// being sent.
func (s *Shaper) queued(now time.Time) int {
	return int(s.free.Sub(now).Seconds() * s.cfg.Rate / 8)
}
