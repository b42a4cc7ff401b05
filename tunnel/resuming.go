package tunnel

import "time"

// BackTime is how long an agent that was lost may take to come back where no other
// serves a destination: a server has dials wait for it, and a dial that was struck is
// asked for again. One whose link was cut is back much sooner; upstream's agents try
// again after a second.
const BackTime = 3 * time.Second

// Resume is what is asked and told of a connection that is to outlive what
// carries it (docs/link-protocol.md §9). It travels with the connection's Flow.
type Resume struct {
	Token  [16]byte      // names the connection, and lets whoever knows it take it over: a secret
	Window time.Duration // how long who asks keeps it without a carrier

	// Attempt counts how often the dial was asked for before and lost its carrier
	// unanswered: the other end may have made the connection already.
	Attempt uint32

	// Of a request to resume; zero for the first carrier.

	Epoch uint32 // numbers the carriers; the newest counts
	Route string // where the other end is, as it was granted
	Taken uint64 // up to here who asks has taken all
	Bulk  bool   // it moves because it carries much
	First string // id of the server to ask first, if it can be had; it is not told

	// What was answered. Without a Window the connection is a plain one.

	Granted Grant
}

// Grant is the answer of a connection's other end.
type Grant struct {
	Window time.Duration // how long that one keeps it without a carrier
	Route  string        // how whoever carries it finds that end again
	Taken  uint64        // up to here it has taken all
}

// Resumable is a connection that outlives what carries it, as one of its ends
// sees it.
type Resumable interface {
	// ResumeStatus may be called at any time, by any goroutine.
	ResumeStatus() ResumeStatus
}

// ResumeStatus is how it has fared so far. Hop and Source are the Flow's as they
// became with the newest carrier, or zero.
type ResumeStatus struct {
	Lost    time.Time // since when nothing carries it; zero: something does
	Resumes int       // how often it went on by another carrier
	Hop     Hop
	Source  string
}

// Interrupted says whether f, which has ended here with err, goes on by another
// way: its ends are elsewhere and have lost nothing.
func (f *Flow) Interrupted(err error) bool {
	if err == nil || f.Resumable != nil || f.Resume == nil || f.Resume.Granted.Window <= 0 {
		return false
	}
	code := CodeOf(err)
	return code == CodeLost || code == CodeShutdown
}

// Again says whether it is about a connection that exists.
func (r *Resume) Again() bool { return r != nil && r.Epoch > 0 }

// String leaves the token out, so that no log line can carry it.
func (r *Resume) String() string { return "resume" }

// GoString leaves the token out of %#v too.
func (r *Resume) GoString() string { return r.String() }

// Repeat prepares for one more attempt at a dial whose carrier was lost before it
// was answered.
func (r *Resume) Repeat() {
	if r != nil {
		r.Attempt++
	}
}
