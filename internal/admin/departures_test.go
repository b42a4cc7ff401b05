package admin

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

func TestLastDeparture(t *testing.T) {
	table := NewTable()
	h := mounted(Source{Table: table})
	if s := get[Status](t, h, "/api/v1/status"); s.LastGone != nil {
		t.Errorf("%+v", s.LastGone)
	}
	for _, c := range []struct {
		err   error
		cause string
		shown int // failures so far
	}{
		{nil, "it was shut down in an orderly way", 0},
		{fmt.Errorf("read: %w", io.EOF), "its connection ended without notice", 1},
		{link.ErrDead, "it fell silent", 2},
		{errors.New("odd"), "its connection was lost: odd", 3},
	} {
		table.Gone(Departure{Tenant: "t", Role: RoleAgent, ID: "a1", Remote: "10.0.0.1:5"}, time.Now().Add(-time.Minute), c.err)
		d := table.departures.of("")
		if d.Tenant != "t" || d.ID != "a1" || d.Role != RoleAgent || d.Cause != c.cause || d.Ordered != (c.err == nil) {
			t.Errorf("%+v, want %q", d, c.cause)
		}
		list := table.failures.list("")
		if len(list) != c.shown || c.shown > 0 && (list[0].Stage != "peer" || list[0].Tenant != "t" || list[0].Destination != "agent a1" || list[0].Cause != c.cause || list[0].Seconds < 59) {
			t.Errorf("%v: failures are %+v", c.err, list)
		}
	}
	if s := get[Status](t, mounted(Source{Table: table}), "/api/v1/status"); s.LastGone == nil || s.LastGone.Cause != "its connection was lost: odd" {
		t.Errorf("%+v", s.LastGone)
	}
	(*Table)(nil).Gone(Departure{Role: RoleAgent, ID: "a1"}, time.Now(), io.EOF) // a server without an admin port
}

// A tenant's last one is shown until another of its own leaves, or the tenant
// goes.
func TestLastDepartureOfTenant(t *testing.T) {
	table := NewTable()
	last := func(tenant string) string {
		s := get[Status](t, mounted(Source{Table: table, Tenant: tenant, Tenants: crowd}), "/api/v1/status")
		if s.LastGone == nil {
			return ""
		}
		return s.LastGone.Tenant + " " + s.LastGone.ID
	}
	for _, d := range []Departure{{Tenant: "a", ID: "1"}, {Tenant: "b", ID: "2"}, {ID: "own"}} {
		table.Gone(d, time.Now(), nil)
	}
	if all, a, b, c := last(""), last("a"), last("b"), last("c"); all != " own" || a != "a 1" || b != "b 2" || c != "" {
		t.Errorf("%q, %q, %q, %q", all, a, b, c)
	}
	table.Forget("a")
	if a, b := last("a"), last("b"); a != "" || b != "b 2" {
		t.Errorf("%q, %q after one is gone", a, b)
	}
}

func TestSilentSeconds(t *testing.T) {
	for last, silent := range map[time.Duration]bool{0: false, 5 * time.Second: false, 8 * time.Second: true} {
		if s := SilentSeconds(time.Now().Add(-last)); (s > 0) != silent || silent && s < 8 {
			t.Errorf("heard %v ago: %v", last, s)
		}
	}
	testutil.Equal(t, SilentSeconds(time.Time{}), 0, "never heard")
}
