package peers

import (
	"time"

	"konnectivity/tunnel"
)

// State says what a session is good for; the package's documentation has the
// transitions. Of two states the lesser is the better one for a new connection.
type State int

// The states.
const (
	Up State = iota
	Agentless
	Unlisted
	Leaving
	Replaced
	Ended
)

// Stays reports whether a session in this state is kept for new connections.
func (s State) Stays() bool { return s == Up || s == Agentless }

// Member is a session of a Set. It is a copy, and may be kept.
type Member[A any, S Session] struct {
	Session S
	Address A
	Since   time.Time

	serves             func(S) bool // nil: every server has agents
	unlisted, replaced bool         // as the loop has noted
}

// State is the session's state now. Any goroutine may ask.
func (m *Member[A, S]) State() State {
	if tunnel.Closed(m.Session.Done()) {
		return Ended
	}
	return m.Standing()
}

// Standing is State for a caller that knows that the session has not ended.
func (m *Member[A, S]) Standing() State {
	switch {
	case m.replaced:
		return Replaced
	case m.Session.Drains().Happened():
		return Leaving
	case m.unlisted:
		return Unlisted
	case m.serves != nil && !m.serves(m.Session):
		return Agentless
	default:
		return Up
	}
}

// member is a Member and what the loop keeps of it.
type member[A any, S Session] struct {
	Member[A, S]
	peer  *Peer
	count int   // as last read from the session
	state State // at the last look
}
