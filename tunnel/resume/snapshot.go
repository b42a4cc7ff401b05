package resume

import (
	"errors"
	"net/netip"
	"time"

	"konnectivity/tunnel"
)

// Snapshot is an acceptor's end of a connection between two processes
// (docs/handover.md). Unless Left, the destination's socket goes with it.
type Snapshot struct {
	Token   [16]byte      `json:"token"`
	ID      string        `json:"id"` // of its flow
	Origin  tunnel.Origin `json:"origin"`
	Rules   string        `json:"rules,omitempty"` // of its flow
	Network string        `json:"network"`
	Address string        `json:"address"`

	// Of the destination's socket: the kernel may not know them any more.

	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`

	Window time.Duration `json:"window"`
	Epoch  uint32        `json:"epoch"` // of the newest carrier

	Taken    uint64 `json:"taken"` // offset below which all came out of carriers
	TakenEnd bool   `json:"takenEnd"`
	FinSent  bool   `json:"finSent"` // the destination was told the end
	From     uint64 `json:"from"`    // offset of the first byte of Kept
	Acked    uint64 `json:"acked"`   // offset below which the peer has taken all
	Sent     uint64 `json:"sent"`    // offset up to which a carrier was given bytes
	Ended    bool   `json:"ended"`   // the destination has ended its direction
	Left     bool   `json:"left"`    // the destination has ended, and has all: the peer lacks some of Kept

	Kept []tunnel.Chunk `json:"-"` // of the direction to the peer
	Owed []byte         `json:"-"` // of the direction to the destination: below Taken, and not written yet
}

// Describe puts the state of m into s, whose Kept shares its memory with m: m has to keep it,
// and to append nothing, for as long.
func (m *Machine) Describe(s *Snapshot) {
	s.Window, s.Epoch = m.window, m.epoch
	s.Taken, s.TakenEnd = m.In.taken, m.In.fin
	s.From, s.Acked, s.Sent = min(m.Out.acked, m.Out.end), m.Out.acked, m.Out.next
	s.Ended, s.Kept = m.Out.fin, m.Out.shares()
}

// restore returns the machine of a connection that waits for its opener from now on.
func restore(s Snapshot, now time.Time) Machine {
	m := Machine{window: min(s.Window, MaxWindow), epoch: s.Epoch, carrier: Detached, loss: tunnel.LossReplaced, since: now}
	m.In = Incoming{taken: s.Taken, told: s.Taken, fin: s.TakenEnd}
	m.Out = Outgoing{base: s.From, end: s.From, acked: s.Acked, next: s.Sent}
	for _, c := range s.Kept {
		m.Out.Append(c)
	}
	m.Out.fin = s.Ended
	if s.Left {
		m.reader = Dropping
	}
	return m
}

// maxOffset is the largest offset that credit leads to (docs/link-protocol.md §7). An offset
// up to that, and the bytes kept behind it, do not overflow.
const maxOffset = 1 << 62

// Check returns an error if no connection can be in that state.
func (s *Snapshot) Check() error {
	end := s.From + uint64(tunnel.LenAll(s.Kept))
	total := end
	if s.Ended {
		total++
	}
	ackedEnd := s.Ended && end == s.From && s.Acked == total
	if s.Acked > s.Sent || s.Sent > total || s.Acked != s.From && !ackedEnd || max(s.From, s.Taken) > maxOffset || s.Window < 0 || s.Left && !s.Ended {
		return errState
	}
	return nil
}

var errState = errors.New("no state of a connection")
