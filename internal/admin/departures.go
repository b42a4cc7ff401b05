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

// lastGone is the last peer of a tenant that left, or of all for ""; nil: there is none.
func (t *Table) lastGone(tenant string) *Departure {
	last, _ := t.departures.Load(tenant)
	gone, _ := last.(*Departure)
	return gone
}

// Gone records that the peer with the Tenant, Role, ID and Remote of d left, and the
// error that ended it, or nil if it left in an orderly way. A lost peer is listed among
// the failures too. Any goroutine may call Gone; on a nil Table it does nothing.
func (t *Table) Gone(d Departure, since time.Time, err error) {
	if t == nil {
		return
	}
	d.Time, d.Cause, d.Ordered = Past{time.Now()}, departure(err), err == nil
	for _, of := range []string{"", d.Tenant} {
		t.departures.Store(of, &d)
	}
	if err == nil {
		return
	}
	t.failures.add(Failure{
		Time: d.Time, Tenant: d.Tenant, Stage: "peer", Source: d.Remote, Destination: d.Role + " " + d.ID,
		Failure: "lost", Cause: d.Cause, Hint: GoneHint, Seconds: d.Time.Sub(since).Seconds(),
	})
}

// GoneHint says what an operator can do about a lost peer.
const GoneHint = "Its process or machine is gone or hangs, or the network in between is cut. Check whether it runs, and read its log."

// departure describes why a peer left.
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

// Linked sets what a link tells of its peer, which was last heard at that time, and of itself.
func (p *Peer) Linked(peer link.Hello, heard time.Time, s link.Stats) {
	p.ID, p.Software, p.Protocol, p.Silent = peer.ID, peer.Software, "link", SilentSeconds(heard)
	p.Streams, p.RoundTrip, p.Window, p.Unread, p.Lanes = s.Streams, s.RTT.Seconds(), s.LargestWindow, s.Unread, s.Lanes
}

// SilentSeconds returns the value of Peer.Silent: the seconds since the peer was last
// heard, or 0 if a healthy peer may be silent so long, or if last is zero, which means
// unknown.
func SilentSeconds(last time.Time) float64 {
	if silence := time.Since(last); !last.IsZero() && silence >= link.SilentAfter {
		return silence.Seconds()
	}
	return 0
}
