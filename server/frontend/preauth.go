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
	// preAuthBytes bounds the weight of all connections of a process that have not
	// begun, in a flood. The collector lets the heap double, and evicted connections
	// wait for it too: resident memory grows by up to five times that on a machine
	// that is busy with other work.
	preAuthBytes = 12 << 20

	// preAuthBurst is the weight above which they count as a flood: 4,000 that wait
	// for their first turn, as agents and sidecars of 2,000 clusters that all come
	// back, or some 600 handshakes that wait for their peers at once.
	preAuthBurst = 24 << 20

	// maxHandshake bounds what a peer may send before TLS is done: a chain of
	// several certificates has up to 24 KiB, and a ClientHello that resumes a
	// session repeats it.
	maxHandshake = 48 << 10

	// maxOpening bounds what it may send after that until it has begun: a
	// header of maxHeader, with the overhead of TLS and HTTP/2.
	maxOpening = 80 << 10
)

// PreAuth is the pre-authentication limiter: it limits the connections of a
// process's frontends that have not begun, so that their peers are unknown. The
// limits are in bytes and descriptors, and a newcomer beyond them replaces
// a connection that has waited for long. So these connections keep out neither each
// other nor connections that have begun.
//
// Their handshakes take half of the processors at most, by source in round robin: a
// flood costs its own time, and that of peers behind the same address. Handshakes
// that have begun go on before others begin, so of many that come at once few have
// cost anything yet.
type PreAuth struct {
	slots *admission.Slots[*Conn]
	turns *admission.Queue // for the processors
}

// The classes of handshakes. A peer that waits for its first turn costs little,
// one that waits for its next holds what the first has made. So handshakes that have
// begun have three turns of four, as many as one takes after its first: no more
// begin than end.
const (
	newHandshakes = iota
	begunHandshakes
)

var handshakePrecedence = [][]int{
	{begunHandshakes, newHandshakes}, {begunHandshakes, newHandshakes}, {begunHandshakes, newHandshakes},
	{newHandshakes, begunHandshakes},
}

// newPreAuth returns a PreAuth under which that many handshakes are computed at once.
func newPreAuth(limits admission.Limits, handshakes int) *PreAuth {
	return &PreAuth{
		slots: admission.NewSlots[*Conn](limits),
		turns: admission.NewQueue(admission.QueueConfig{Precedence: handshakePrecedence, Limit: handshakes}),
	}
}

func halfOfProcessors() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// NewPreAuth returns the PreAuth of a process that may have that many descriptors
// open; 0 means any number.
func NewPreAuth(descriptors int) *PreAuth {
	return newPreAuth(admission.Limits{
		Waiting: admission.ShareOut(descriptors).Unproven, Bytes: preAuthBytes, Burst: preAuthBurst, Each: silentWeight,
	}, halfOfProcessors())
}

// NewLocalPreAuth returns the PreAuth of unix sockets. File permissions decide who
// may connect there, so it limits only their number; connections to ports count
// apart.
func NewLocalPreAuth(descriptors int) *PreAuth {
	return newPreAuth(admission.Limits{Waiting: admission.ShareOut(descriptors).Unproven, Each: silentWeight}, halfOfProcessors())
}

// Held returns the number of connections, and their estimated cost in bytes.
func (p *PreAuth) Held() (connections int, bytes int64) { return p.slots.Held() }

// each calls do for the connections of f; do must not block.
func (p *PreAuth) each(f *Frontend, do func(*Conn)) {
	p.slots.Waiting(func(c *Conn) {
		if c.front == f {
			do(c)
		}
	})
}
