package frontend

import "konnectivity/internal/admission"

// What a connection weighs that has not begun, in bytes: measured, and rounded
// up. What its peer has sent comes on top, times readWeight: crypto/tls and
// gRPC gather it in buffers that grow by doubling, and keep what they make of
// it.
const (
	silentWeight = 6 << 10  // a socket and a goroutine
	tlsWeight    = 36 << 10 // a record's buffer, which five bytes make TLS allocate, the state and the stack of a handshake
	// GRPCWeight is that of a gRPC connection without a stream: two buffers of
	// 32 KiB and three goroutines, on top of TLS.
	GRPCWeight = 112 << 10
	readWeight = 2

	// weighEvery is how many bytes pass between two looks at the weight.
	weighEvery = 4 << 10
)

const (
	// strangersBytes is what all strangers of a process may weigh. The
	// collector lets the heap double, and those that were evicted wait for it
	// too: resident memory grows by up to three times that.
	strangersBytes = 16 << 20

	// maxHello bounds what a peer may send before TLS has answered it: a
	// ClientHello that resumes a session repeats a chain of several
	// certificates, which has up to 24 KiB.
	maxHello = 30 << 10

	// maxHandshake bounds what it may send in all before TLS is done: the same
	// chain, or more, once it has been asked for it.
	maxHandshake = 48 << 10

	// maxOpening bounds what it may send from then on until it has begun: a
	// header of maxHeader, with what TLS and HTTP/2 put around it.
	maxOpening = 80 << 10
)

// Strangers are the connections of a process's frontends that have not
// begun: nothing is known of who they are, or that they mean it. They have a
// room of their own, bounded in bytes and descriptors, in which a newcomer takes
// the place of one that has waited for long. So they keep out neither each other
// nor those that have begun.
type Strangers struct{ slots *admission.Slots[*Conn] }

// NewStrangers makes room in a process that may have so many descriptors open;
// 0 for any number.
func NewStrangers(descriptors int) *Strangers {
	return &Strangers{admission.NewSlots[*Conn](admission.Limits{
		Waiting: admission.ShareOut(descriptors).Strangers, Bytes: strangersBytes, Each: silentWeight,
	})}
}

// NewLocalStrangers makes room for those who come by unix socket. Who may open
// its file is known, so their number alone is bounded, and no stranger of a port
// takes their place.
func NewLocalStrangers(descriptors int) *Strangers {
	return &Strangers{admission.NewSlots[*Conn](admission.Limits{
		Waiting: admission.ShareOut(descriptors).Strangers, Each: silentWeight,
	})}
}

// Held is how many there are, and how many bytes they are reckoned to cost.
func (s *Strangers) Held() (connections int, bytes int64) { return s.slots.Held() }

// each calls do for those of f; it must not block.
func (s *Strangers) each(f *Frontend, do func(*Conn)) {
	s.slots.Waiting(func(c *Conn) {
		if c.front == f {
			do(c)
		}
	})
}
