package legacy

import (
	"slices"
	"time"
)

// state is how far the end of a connection has come. The closing packet is the one by
// which this side ends its direction: CLOSE_REQ of an opener, CLOSE_RSP of a server.
type state uint8

const (
	open       state = iota // both directions carry bytes
	awaiting                // ended here; CLOSE_REQ is held back, no byte of the answer has come
	answered                // ended here; CLOSE_REQ is held back while the answer comes
	settling                // ended here; CLOSE_REQ is held back while data reaches the destination
	closing                 // ended here; the closing packet is queued or sent
	halfClosed              // ended here; the closing packet is sent
	answering               // ended there; this side goes on
	finishing               // ended both ways; the closing packet is queued
	unheard                 // ended there, and its stream is dead: writes are dropped
	lingering               // ended both ways, as unheard; received bytes are still delivered
	resetting               // the closing packet is queued, with an error
	dropping                // the peer was told to drop the connection
	delivering              // forgotten by the mux; received bytes are still delivered
	over                    // forgotten by the mux
	states
)

// event is what changes a state.
type event uint8

const (
	closesWrite event = iota // CloseWrite
	closes                   // Close, for the first time
	resets                   // Reset, for the first time, or the peer resets a server's connection
	hastens                  // the answer is not awaited
	arrives                  // DATA, after Close or Reset
	peerEnds                 // the peer's closing packet
	peerResets               // the peer's closing packet, with an error
	sent                     // the closing packet was given to gRPC
	due                      // next has come
	orphaned                 // the peer's stream is dead
	events
)

// action is a set of what a transition does.
type action uint8

const (
	queueClose action = 1 << iota // the closing packet goes behind the data
	queueReset                    // the closing packet goes behind the data, with an error
	drop                          // the packet that drops the connection goes ahead of the data
	discard                       // data that waits to be sent is freed
	mute                          // writes are dropped from now on
	forget                        // the mux forgets the connection
	cancel                        // the relay is ended
)

const (
	// answerWait is how long CloseWrite holds CLOSE_REQ back for the first byte of an
	// answer: the time konnectivity-client itself waits
	// for the end (its CloseTimeout).
	answerWait = 10 * time.Second

	// answerQuiet is how long an answer may pause, after CloseWrite, until it
	// counts as complete. An idle keep-alive connection that its client closes
	// is held this long.
	answerQuiet = 2 * time.Second

	// settleTime is how long Close holds CLOSE_REQ back when data was sent
	// last. Upstream's agents drop what they have not yet written to the
	// destination when CLOSE_REQ comes (pkg/agent/client.go, cleanFunc).
	settleTime = 500 * time.Millisecond

	// closeTimeout is how long a peer may take to confirm an end.
	closeTimeout = 10 * time.Second

	// closeQuiet is how long, after the peer's CLOSE_REQ, the destination may
	// say nothing until CLOSE_RSP is sent. Short, because konnectivity-client
	// sits in Close meanwhile (and net/http closes idle connections one by
	// one), and because with it CLOSE_REQ is the end of both directions. Long
	// enough for a destination that ends when it sees FIN.
	closeQuiet = 100 * time.Millisecond

	// closeCap bounds that wait where the destination goes on sending, below
	// the 10 s for which konnectivity-client waits.
	closeCap = 8 * time.Second

	// closeLinger is how long, after CLOSE_RSP, the bytes that the peer sent before it
	// closed may take to reach a slow destination, and after a reset, those that were
	// written before it to be given to gRPC.
	closeLinger = 30 * time.Second
)

// facts are the conditions around a transition.
type facts struct {
	unanswered bool   // data was written after data last came
	unread     bool   // received bytes wait to be read
	traffic    uint64 // of an opener, the batches that came; of a server, the chunks that were written
}

// condition is a fact that a rule needs.
type condition struct {
	name  string
	holds func(c *closer, f facts, now time.Time) bool
}

var (
	hasty      = &condition{"hasty", func(c *closer, _ facts, _ time.Time) bool { return c.hasty }}
	unanswered = &condition{"unanswered", func(_ *closer, f facts, _ time.Time) bool { return f.unanswered }}
	moving     = &condition{"moving", func(c *closer, f facts, _ time.Time) bool { return f.traffic != c.traffic }}
	movingRead = &condition{"moving, read", func(c *closer, f facts, _ time.Time) bool { return f.traffic != c.traffic && !c.closed }}
	early      = &condition{"before 10 s", func(c *closer, _ facts, now time.Time) bool { return now.Sub(c.since) < answerWait }}
	busy       = &condition{"busy", func(c *closer, f facts, now time.Time) bool {
		return (f.traffic != c.traffic || f.unread) && now.Sub(c.since) < closeCap
	}}
	kept = &condition{"not closed", func(c *closer, _ facts, _ time.Time) bool { return !c.closed }}
)

// rule is a transition. Of the rules for a state and an event the first whose condition
// holds counts; where there is none, nothing changes.
type rule struct {
	from []state
	on   event
	if_  *condition // nil: always
	to   state
	do   action
	wait time.Duration // until due; 0: never, keep: as it was
}

const keep time.Duration = -1

// role is the end of a connection that asked for it, the opener, or that serves it, the
// server, towards a peer that knows half-close or an old one.
type role struct {
	server, duplex bool
	rules          []rule
}

// The roles.
var (
	oldOpener = &role{rules: []rule{
		{from: []state{open}, on: closesWrite, if_: hasty, to: settling, wait: settleTime},
		{from: []state{open}, on: closesWrite, if_: unanswered, to: awaiting, wait: answerQuiet},
		{from: []state{open}, on: closesWrite, to: answered, wait: answerQuiet},
		{from: []state{awaiting, answered}, on: due, if_: moving, to: answered, wait: answerQuiet},
		{from: []state{awaiting}, on: due, if_: early, to: awaiting, wait: answerQuiet},
		{from: []state{awaiting, answered, settling}, on: due, to: closing, do: queueClose, wait: closeTimeout},
		{from: []state{awaiting, answered, settling}, on: hastens, to: settling, wait: settleTime},
		{from: []state{open, awaiting, answered, settling}, on: closes, if_: unanswered, to: settling, wait: settleTime},
		{from: []state{open, awaiting, answered, settling}, on: closes, to: closing, do: queueClose, wait: closeTimeout},
		{from: []state{closing}, on: closes, to: closing, wait: closeTimeout},
		{from: []state{closing}, on: due, if_: movingRead, to: closing, wait: closeTimeout},
		{from: []state{open, awaiting, answered, settling, closing}, on: resets, to: dropping, do: drop | discard, wait: closeTimeout},
		{from: []state{closing, dropping}, on: due, to: over, do: forget},
		{from: []state{open, awaiting, answered, settling, closing, dropping}, on: peerEnds, to: over, do: forget},
		{from: []state{open, awaiting, answered, settling, closing, dropping}, on: peerResets, to: over, do: forget},
	}}

	duplexOpener = &role{duplex: true, rules: []rule{
		{from: []state{open}, on: closesWrite, to: closing, do: queueClose},
		{from: []state{open}, on: closes, to: closing, do: queueClose, wait: closeTimeout},
		{from: []state{open}, on: peerEnds, to: answering},
		{from: []state{closing}, on: closes, to: closing, wait: closeTimeout},
		{from: []state{closing}, on: sent, to: halfClosed, wait: keep},
		{from: []state{closing}, on: peerEnds, to: finishing, wait: keep},
		{from: []state{halfClosed}, on: closes, to: halfClosed, wait: closeTimeout},
		{from: []state{halfClosed, dropping}, on: peerEnds, to: over, do: forget},
		{from: []state{answering}, on: closesWrite, to: finishing, do: queueClose},
		{from: []state{answering}, on: closes, to: finishing, do: queueClose, wait: closeTimeout},
		{from: []state{finishing}, on: closes, to: finishing, wait: closeTimeout},
		{from: []state{finishing}, on: sent, to: over, do: forget},
		{from: []state{closing, halfClosed, finishing}, on: due, to: dropping, do: drop | discard, wait: closeTimeout},
		{from: []state{closing, halfClosed, finishing}, on: arrives, to: dropping, do: drop | discard, wait: closeTimeout},
		{from: []state{open, closing, halfClosed, answering, finishing}, on: resets, to: dropping, do: drop | discard, wait: closeTimeout},
		{from: []state{dropping}, on: due, to: over, do: forget},
		{from: []state{open, closing, halfClosed, answering, finishing, dropping}, on: peerResets, to: over, do: forget},
	}}

	oldServer = &role{server: true, rules: []rule{
		{from: []state{open}, on: closesWrite, to: closing, do: queueClose},
		{from: []state{open}, on: closes, to: closing, do: queueClose},
		{from: []state{open}, on: peerEnds, to: answering, wait: closeQuiet},
		{from: []state{closing}, on: sent, to: over, do: forget},
		{from: []state{closing}, on: peerEnds, to: finishing},
		{from: []state{answering}, on: due, if_: busy, to: answering, wait: closeQuiet},
		{from: []state{answering}, on: due, to: lingering, do: queueClose | mute, wait: closeLinger},
		{from: []state{answering}, on: closesWrite, to: finishing, do: queueClose},
		{from: []state{answering}, on: closes, to: finishing, do: queueClose},
		{from: []state{answering, unheard}, on: orphaned, to: unheard, do: mute, wait: closeLinger},
		{from: []state{unheard}, on: closesWrite, to: lingering, do: queueClose, wait: keep},
		{from: []state{unheard}, on: closes, to: lingering, do: queueClose},
		{from: []state{unheard}, on: due, to: unheard, do: cancel},
		{from: []state{open, closing, answering, unheard}, on: resets, to: resetting, do: queueReset, wait: closeLinger},
		{from: []state{resetting}, on: sent, to: over, do: forget},
		{from: []state{resetting}, on: due, to: over, do: drop | discard | forget},
		{from: []state{finishing, lingering}, on: orphaned, if_: kept, to: lingering, do: mute, wait: closeLinger},
		{from: []state{finishing, lingering}, on: sent, to: delivering, do: forget, wait: keep},
		{from: []state{finishing, lingering}, on: resets, to: delivering, do: drop | discard | forget},
		{from: []state{lingering}, on: due, to: lingering, do: cancel},
		{from: []state{delivering}, on: orphaned, if_: kept, to: delivering, do: mute, wait: closeLinger},
		{from: []state{delivering}, on: due, to: delivering, do: cancel},
	}}

	duplexServer = &role{server: true, duplex: true, rules: []rule{
		{from: []state{open}, on: closesWrite, to: closing, do: queueClose},
		{from: []state{open}, on: closes, to: closing, do: queueClose, wait: closeTimeout},
		{from: []state{open}, on: peerEnds, to: answering},
		{from: []state{closing}, on: closes, to: closing, wait: closeTimeout},
		{from: []state{closing}, on: sent, to: halfClosed, wait: keep},
		{from: []state{closing}, on: peerEnds, to: finishing, wait: keep},
		{from: []state{halfClosed}, on: closes, to: halfClosed, wait: closeTimeout},
		{from: []state{halfClosed}, on: peerEnds, to: delivering, do: forget},
		{from: []state{closing, halfClosed, finishing}, on: due, to: over, do: forget},
		{from: []state{halfClosed}, on: resets, to: over, do: drop | forget},
		{from: []state{answering}, on: closesWrite, to: finishing, do: queueClose},
		{from: []state{answering}, on: closes, to: finishing, do: queueClose},
		{from: []state{finishing}, on: sent, to: delivering, do: forget},
		{from: []state{finishing}, on: resets, to: delivering, do: drop | discard | forget},
		{from: []state{open, closing, answering}, on: resets, to: resetting, do: queueReset, wait: closeLinger},
		{from: []state{resetting}, on: sent, to: over, do: forget},
		{from: []state{resetting}, on: due, to: over, do: drop | discard | forget},
		{from: []state{closing, halfClosed, finishing, resetting}, on: arrives, to: over, do: drop | forget},
	}}
)

// openers and servers are the roles by whether the peer knows half-close.
var (
	openers = map[bool]*role{false: oldOpener, true: duplexOpener}
	servers = map[bool]*role{false: oldServer, true: duplexServer}
)

// closer decides how a connection ends: which packets go when, and when the mux forgets
// it. It does no I/O and has no lock: the connection's guards it.
type closer struct {
	*role
	state  state
	hasty  bool      // the answer is not awaited
	closed bool      // Close or Reset was called: what arrives is dropped
	next   time.Time // when due is to be reported; zero: never

	since   time.Time // when the state began that now waits for quiet
	traffic uint64    // at the last transition
}

// step takes an event and returns the actions that it calls for. The facts are those at
// the time now.
func (c *closer) step(e event, f facts, now time.Time) action {
	switch e {
	case due:
		if c.next.IsZero() || now.Before(c.next) {
			return 0 // of a timer that was replaced
		}
	case hastens:
		c.hasty = true
	case closes, resets:
		if !c.closed {
			c.closed, c.next = true, time.Time{}
		}
	}
	r := c.rule(e, f, now)
	if r == nil {
		return 0
	}
	if e != due {
		c.since = now
	}
	c.state, c.traffic = r.to, f.traffic
	switch r.wait {
	case keep:
	case 0:
		c.next = time.Time{}
	default:
		c.next = now.Add(r.wait)
	}
	return r.do
}

func (c *closer) rule(e event, f facts, now time.Time) *rule {
	for i := range c.rules {
		r := &c.rules[i]
		if r.on == e && slices.Contains(r.from, c.state) && (r.if_ == nil || r.if_.holds(c, f, now)) {
			return r
		}
	}
	return nil
}

// lose ends everything: the stream is gone.
func (c *closer) lose() { c.state, c.next = over, time.Time{} }

// writable reports whether this side has not ended its direction.
func (c *closer) writable() bool {
	return c.state == open || c.state == answering || c.state == unheard
}

// peerEnded reports whether the peer has ended its direction in order.
func (c *closer) peerEnded() bool {
	return c.state == answering || c.state == unheard || c.state == finishing || c.state == lingering || c.state == delivering
}
