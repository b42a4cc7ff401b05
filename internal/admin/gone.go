package admin

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// departures are the last peers that left: of all, and of each tenant.
type departures struct {
	mu       sync.Mutex
	last     *Departure // nil: none yet
	byTenant map[string]*Departure
}

func (g *departures) add(d *Departure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = d
	if d.Tenant == "" {
		return
	}
	if g.byTenant == nil {
		g.byTenant = make(map[string]*Departure)
	}
	g.byTenant[d.Tenant] = d
}

// of is a tenant's, or the last of all for ""; nil: none yet.
func (g *departures) of(tenant string) *Departure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if tenant == "" {
		return g.last
	}
	return g.byTenant[tenant]
}

// forget drops that of a tenant that is over; the last of all stays.
func (g *departures) forget(tenant string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byTenant, tenant)
}

// Gone records that a peer left, of which d names Tenant, Role, ID and Remote, with
// the error that ended it, or nil if it left in an orderly way. A lost peer is listed
// among the failures, too. It may be called from any goroutine, and does nothing on a
// nil Table.
func (t *Table) Gone(d Departure, since time.Time, err error) {
	if t == nil {
		return
	}
	d.Time, d.Cause, d.Ordered = time.Now(), departure(err), err == nil
	t.gone.add(&d)
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

// SilentSeconds returns a value for Peer.Silent: how long ago the peer
// was last heard, or 0 if that is no longer than a living peer may be silent. A
// zero last means that it is not known.
func SilentSeconds(last time.Time) float64 {
	if silence := time.Since(last); !last.IsZero() && silence >= link.SilentAfter {
		return silence.Seconds()
	}
	return 0
}
