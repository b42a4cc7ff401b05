package registry

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
)

// telling is a backend that knows when its agent was heard last.
type telling struct {
	*fake
	last time.Time
}

func (f *telling) Heard() time.Time { return f.last }

// A dial that runs out of time is the agent's fault only if the agent itself
// was silent.
func TestTheAgentIsBlamedWhereItIsSilent(t *testing.T) {
	for name, c := range map[string]struct {
		heard  time.Duration // when, after the dial began
		known  bool
		blamed bool
	}{
		"silent since before": {-time.Second, true, true},
		"heard meanwhile":     {4 * time.Second, true, false},
		"not known":           {0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &telling{fake: newFake("a1")}
				b.dial = func(ctx context.Context) error {
					<-ctx.Done()
					return tunnel.AsDialError("a:1", ctx.Err())
				}
				if c.known {
					b.last = time.Now().Add(c.heard)
				}
				s := newSetup(t, "default")
				leave := s.Join(Agent{ID: "a1", Via: "link"}, b)
				defer leave()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := s.Dial(ctx, tunnel.NewFlow("tcp", "a:1"))
				text := tunnel.AsDialError("", err).Text()
				if tunnel.FailureOf(err) != tunnel.FailTimeout || strings.Contains(text, "the agent does not answer") != c.blamed {
					t.Errorf("%v: %q", tunnel.FailureOf(err), text)
				}
			})
		})
	}
}
