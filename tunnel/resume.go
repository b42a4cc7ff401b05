package tunnel

import "time"

// BackTime is how long dials wait for an agent that was lost or has left, or another in its
// place, where none serves their destination: a server holds them, and repeats those that the
// agent lost. An agent whose link was cut is back much sooner; upstream's agents try again after
// a second.
const BackTime = 3 * time.Second

// Resume is the request that a connection outlive its carriers, and the answer
// (docs/link-protocol.md §9). It travels with the connection's Flow.
type Resume struct {
	Token  [16]byte      // names the connection; its holder can take the connection over: a secret
	Window time.Duration // how long this end keeps the connection without a carrier

	// Attempt counts the attempts before this one whose carrier was lost before an
	// answer: the other end may have made the connection already.
	Attempt uint32

	// Of a request to resume; zero for the first carrier.

	Epoch uint32 // numbers the carriers; the newest counts
	Route string // to the other end, as it was granted
	Taken uint64 // the offset up to which this end has taken all bytes
	Bulk  bool   // the connection moves because it carries much
	First string // id of the server to prefer; it is not sent

	// The answer. Without a Window the connection is a plain one.

	Granted Grant
}

// Grant is the answer of a connection's other end.
type Grant struct {
	Window time.Duration // how long that end keeps the connection without a carrier
	Route  string        // by which a carrier reaches that end again
	Taken  uint64        // the offset up to which that end has taken all bytes
}

// Resumable is one end of a connection that outlives its carriers.
type Resumable interface {
	// ResumeStatus may be called at any time, by any goroutine.
	ResumeStatus() ResumeStatus
}

// ResumeStatus is the state of a Resumable. Hop and Source are those of the newest
// carrier, or zero.
type ResumeStatus struct {
	Lost    time.Time // when it lost its carrier; zero: it has one
	Resumes int       // how often it went on by another carrier
	Loss    LossCause // why it lost the newest carrier that it lost
	Hop     Hop
	Source  string
}

// Interrupted reports whether f, which has ended here with err, goes on by another
// way: its ends are in other processes and have lost nothing.
func (f *Flow) Interrupted(err error) bool {
	if err == nil || f.Resumable != nil || f.Resume == nil || f.Resume.Granted.Window <= 0 {
		return false
	}
	code := CodeOf(err)
	return code == CodeLost || code == CodeShutdown
}

// Again reports whether the request is about a connection that exists.
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
