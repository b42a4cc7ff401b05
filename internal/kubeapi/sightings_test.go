package kubeapi_test

import (
	"testing"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
)

func TestLeasesAtFirstSight(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration) *kubeapi.MicroTime { return &kubeapi.MicroTime{Time: now.Add(-ago)} }
	seconds, none := int32(30), int32(0)
	for name, c := range map[string]struct {
		spec kubeapi.LeaseSpec
		want bool
	}{
		"renewed":            {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: at(29 * time.Second)}, true},
		"expired":            {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: at(31 * time.Second)}, false},
		"taken, not renewed": {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, AcquireTime: at(time.Second)}, true},
		"renewal counts":     {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, AcquireTime: at(time.Second), RenewTime: at(time.Minute)}, false},
		"without times":      {kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds}, false},
		"without a duration": {kubeapi.LeaseSpec{RenewTime: at(29 * time.Second)}, true},
		"of no duration":     {kubeapi.LeaseSpec{LeaseDurationSeconds: &none, RenewTime: at(31 * time.Second)}, false},
		"empty":              {kubeapi.LeaseSpec{}, false},
	} {
		var s kubeapi.Sightings
		lease := &kubeapi.Lease{Spec: c.spec}
		s.Look([]*kubeapi.Lease{lease}, now)
		live, over := s.Judge(lease, now, now)
		testutil.Holds(t, live == c.want && !over, "%s: live %v, over %v", name, live, over)
		live, over = s.Judge(lease, now.Add(30*time.Second), now)
		testutil.Holds(t, !live && over != c.want, "%s, 30 s later by our clock alone: live %v, over %v", name, live, over)
	}
}

// A holder's clock may be wrong by any time: what counts is that it renews.
func TestRenewedLeases(t *testing.T) {
	start, seconds := time.Now(), int32(30)
	for _, ahead := range []time.Duration{0, -time.Hour, time.Hour} {
		var s kubeapi.Sightings
		at := func(after time.Duration, version string) (live, over bool) {
			lease := &kubeapi.Lease{Spec: kubeapi.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &kubeapi.MicroTime{Time: start.Add(ahead)}}}
			lease.ResourceVersion = version
			s.Look([]*kubeapi.Lease{lease}, start.Add(after))
			return s.Judge(lease, start.Add(after), start.Add(after))
		}
		at(0, "1")
		live, _ := at(time.Minute, "2")
		testutil.Holds(t, live, "%v ahead: not live, though renewed", ahead)
		live, _ = at(89*time.Second, "2")
		testutil.Holds(t, live, "%v ahead: not live 29 s later", ahead)
		live, over := at(91*time.Second, "2")
		testutil.Holds(t, !live && over == (ahead <= 0), "%v ahead, 31 s later: live %v, over %v", ahead, live, over)
		s.Look(nil, start)
		_, over = at(2*time.Hour, "2")
		testutil.Holds(t, !over, "%v ahead: one that came back is over at once", ahead)
	}
}
