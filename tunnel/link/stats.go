package link

import (
	"fmt"
	"strings"
	"time"

	"konnectivity/tunnel"
)

// counters are a session's figures so far.
type counters struct {
	sent, received           uint64
	dataReceived             uint64 // DATA frames; those sent are the sendQueue's
	opened, accepted, resets uint64
	answered, established    uint64
	unread                   int
}

// moved is payload, both ways.
func (c *counters) moved() uint64 { return c.sent + c.received }

// Stats is a session's figures at one moment.
type Stats struct {
	Streams          int    // open now
	Sent, Received   uint64 // payload bytes
	Unread           int    // received bytes that were not read yet
	Opened, Accepted uint64 // streams, so far
	Answered         uint64 // of them, those whose dial was answered, either way
	Ended            uint64 // of them, those that were established and are over
	DataSent         uint64 // DATA frames
	DataReceived     uint64
	Resets           uint64        // streams that this side reset for the protocol's or memory's sake
	RTT              time.Duration // 0: unknown
	Stalled          int           // streams whose window is full and not being read
	LargestWindow    uint64        // of all open streams, bytes
	Lanes            int           // connections
	Lost             Losses        // connections that have ended
}

// Losses count losses by cause.
type Losses [tunnel.LossCauses]uint64

// String has those that are not 0, by the labels of their causes.
func (l Losses) String() string {
	var words []string
	for cause, n := range l {
		if n > 0 {
			words = append(words, fmt.Sprintf("%s:%d", tunnel.LossCause(cause).Label(), n))
		}
	}
	return "[" + strings.Join(words, " ") + "]"
}

// Plus is both together: sums, and the longest and largest.
func (s Stats) Plus(o Stats) Stats {
	s.Count(o)
	s.Streams += o.Streams
	s.Stalled += o.Stalled
	s.Unread += o.Unread
	s.Lanes += o.Lanes
	s.LargestWindow = max(s.LargestWindow, o.LargestWindow)
	s.RTT = max(s.RTT, o.RTT)
	return s
}

// Count adds the counters of o, which is over.
func (s *Stats) Count(o Stats) {
	s.Answered += o.Answered
	s.Ended += o.Ended
	s.DataSent += o.DataSent
	s.DataReceived += o.DataReceived
	s.Opened += o.Opened
	s.Accepted += o.Accepted
	s.Resets += o.Resets
	s.Sent += o.Sent
	s.Received += o.Received
	for cause, n := range o.Lost {
		s.Lost[cause] += n
	}
}

// Stats costs one pass over the open streams.
func (ses *Session) Stats() Stats {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	c := &ses.count
	s := Stats{
		Lanes: 1, Streams: ses.streams.count(), Sent: c.sent, Received: c.received, Unread: c.unread,
		Opened: c.opened, Accepted: c.accepted, Resets: c.resets, RTT: ses.alive.rtt,
		Answered: c.answered, Ended: c.established,
		DataSent: ses.sender.queue.dataFrames, DataReceived: c.dataReceived,
	}
	if ses.err != nil {
		s.Lost[tunnel.LossOf(ses.err)]++
	}
	for _, st := range ses.streams.byID {
		if st.state.established() {
			s.Ended--
		}
		credit := &st.recv.credit
		s.LargestWindow = max(s.LargestWindow, credit.window)
		if credit.received == credit.limit && credit.unread() > 0 {
			s.Stalled++
		}
	}
	return s
}
