package kubeapi

import (
	"cmp"
	"time"
)

// LeaseDuration is that of a server's lease, upstream's (cmd/server/app/server.go) and ours, and
// of a lease that does not say it.
const LeaseDuration = 30 * time.Second

// Sightings tell which leases' holders are there. Clocks of holders differ, and are set. So a
// lease is live while it is renewed; at first sight, until its own time is over, but for its
// duration by our clock at most. It is over only after both. The zero value has seen none. It is
// pure, and has no lock.
type Sightings struct{ seen map[string]sighting }

// sighting is when a lease was last seen to have changed, by our own clock.
type sighting struct {
	version string
	at      time.Time
	renewed bool // seen to change at all
}

// Look takes in all leases that there are now.
func (s *Sightings) Look(all []*Lease, now time.Time) {
	seen := make(map[string]sighting, len(all))
	for _, lease := range all {
		last, known := s.seen[lease.Name]
		if !known || last.version != lease.ResourceVersion {
			last = sighting{version: lease.ResourceVersion, at: now, renewed: known}
		}
		seen[lease.Name] = last
	}
	s.seen = seen
}

// Judge says whether a lease that Look has just taken in is live, and whether it is over. It may be
// neither. Both times are the present: now by our clock, as in Look, and written by a clock that is
// near those of holders.
func (s *Sightings) Judge(lease *Lease, now, written time.Time) (live, over bool) {
	duration, last := LeaseDuration, s.seen[lease.Name]
	if d := lease.Spec.LeaseDurationSeconds; d != nil && *d > 0 {
		duration = time.Duration(*d) * time.Second
	}
	fresh, inTime := now.Sub(last.at) < duration, false
	if at := cmp.Or(lease.Spec.RenewTime, lease.Spec.AcquireTime); at != nil {
		inTime = at.Add(duration).After(written)
	}
	return fresh && (last.renewed || inTime), !fresh && !inTime
}
