package admin

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Gone notes that a peer left, err being why: nil if it did so in order. What
// was lost shows among the failures, too. It may be called from any goroutine,
// and does nothing on a nil Table.
func (t *Table) Gone(role, id, remote string, since time.Time, err error) {
	if t == nil {
		return
	}
	d := &Departure{Time: time.Now(), Role: role, ID: id, Remote: remote, Cause: departure(err), Ordered: err == nil}
	t.gone.Store(d)
	if err == nil {
		return
	}
	t.failures.add(Failure{
		Time: d.Time, Stage: "peer", Source: remote, Destination: role + " " + id,
		Failure: "lost", Cause: d.Cause, Hint: GoneHint, Seconds: d.Time.Sub(since).Seconds(),
	})
}

// GoneHint is what an operator can do about a peer that was lost.
const GoneHint = "Its process or machine is gone or hangs, or the network in between is cut. Check whether it runs, and read its log."

// departure says why a peer left.
func departure(err error) string {
	switch {
	case err == nil:
		return "it was shut down in an orderly way"
	case errors.Is(err, link.ErrDead):
		return "it fell silent"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), tunnel.IsErrno(err, syscall.ECONNRESET), errors.Is(err, context.Canceled):
		return "its connection ended without notice"
	default:
		return "its connection was lost: " + err.Error()
	}
}

// SilentSeconds is for Peer: how long a peer has said nothing since it was
// heard last; 0 while that is no longer than a living one may be silent, or
// where it is not known, which is last's zero.
func SilentSeconds(last time.Time) float64 {
	if silence := time.Since(last); !last.IsZero() && silence >= link.SilentAfter {
		return silence.Seconds()
	}
	return 0
}
