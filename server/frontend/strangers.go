package frontend

import (
	"runtime"

	"konnectivity/internal/admission"
)

// The weight of a connection that has not begun, in bytes: measured, and
// rounded up. What its peer has sent adds to it, times readWeight: crypto/tls
// and gRPC gather it in buffers that grow by doubling, and keep what they parse
// from it.
const (
	silentWeight = 6 << 10  // a socket and a goroutine
	tlsWeight    = 36 << 10 // a record's buffer, which five bytes make TLS allocate, the state and the stack of a handshake
	// GRPCWeight is that of a gRPC connection without a stream: two buffers of
	// 32 KiB and three goroutines, on top of TLS.
	GRPCWeight = 112 << 10
	readWeight = 2

	// weighEvery is how many bytes pass between two checks of the weight.
	weighEvery = 4 << 10
)

const (
	// strangersBytes is what all strangers of a process may weigh in a flood.
	// The collector lets the heap double, and those that were evicted wait for
	// it too: resident memory grows by up to five times that on a machine that
	// is busy with others.
	strangersBytes = 12 << 20

	// strangersBurst is what they may weigh before it counts as a flood: 4,000
	// that wait for their first turn, as agents and sidecars of 2,000 clusters that
	// all come back, or some 600 handshakes that wait for their peers at once.
	strangersBurst = 24 << 20

	// maxHandshake bounds what a peer may send before TLS is done: a chain of
	// several certificates has up to 24 KiB, and a ClientHello that resumes a
	// session repeats it.
	maxHandshake = 48 << 10

	// maxOpening bounds what it may send after that until it has begun: a
	// header of maxHeader, with the overhead of TLS and HTTP/2.
	maxOpening = 80 << 10
)

// Strangers are the connections of a process's frontends that have not begun:
// nothing is known about who they are, or whether they are genuine. They have
// limits of their own, in bytes and descriptors, and when these are reached a
// newcomer replaces one that has waited for long. So they keep out neither each
// other nor connections that have begun.
//
// Their handshakes take half of the processors at most, by source in turn: what
// a flood of them costs is its own time, and that of those behind its address.
// Those that were begun are ended before others are begun, so however many come
// at once, few have cost anything yet.
type Strangers struct {
	slots *admission.Slots[*Conn]
	turns *admission.Queue // for the processors
}

// The classes of handshakes. A peer that waits for its first turn costs little,
// one that waits for its next holds what the first has made: so those that have
// begun have three turns of four, as many as a handshake takes from its first to
// its end, and no more are begun than are ended.
const (
	newHandshakes = iota
	begunHandshakes
)

var handshakePrecedence = [][]int{
	{begunHandshakes, newHandshakes}, {begunHandshakes, newHandshakes}, {begunHandshakes, newHandshakes},
	{newHandshakes, begunHandshakes},
}

func strangers(limits admission.Limits, processors int) *Strangers {
	return &Strangers{
		slots: admission.NewSlots[*Conn](limits),
		turns: admission.NewQueue(admission.QueueConfig{Precedence: handshakePrecedence, Limit: processors}),
	}
}

// halfOfProcessors is how many handshakes are computed at once.
func halfOfProcessors() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// NewStrangers returns Strangers for a process that may have that many
// descriptors open; 0 means any number.
func NewStrangers(descriptors int) *Strangers {
	return strangers(admission.Limits{
		Waiting: admission.ShareOut(descriptors).Strangers, Bytes: strangersBytes, Burst: strangersBurst, Each: silentWeight,
	}, halfOfProcessors())
}

// NewLocalStrangers returns Strangers for unix sockets. File permissions decide
// who may connect there, so only their number is limited, and no stranger from
// a port takes their place.
func NewLocalStrangers(descriptors int) *Strangers {
	return strangers(admission.Limits{
		Waiting: admission.ShareOut(descriptors).Strangers, Each: silentWeight,
	}, halfOfProcessors())
}

// Held returns how many there are, and their estimated cost in bytes.
func (s *Strangers) Held() (connections int, bytes int64) { return s.slots.Held() }

// each calls do for those of f; do must not block.
func (s *Strangers) each(f *Frontend, do func(*Conn)) {
	s.slots.Waiting(func(c *Conn) {
		if c.front == f {
			do(c)
		}
	})
}
