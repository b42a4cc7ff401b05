package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// An agent drains beside another one of its id, with no hand-over socket between them. Its
// connections go on through it, though their links are cut, or all servers are replaced.
func TestConnectionsGoOnThroughAnAgentThatDrains(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*fleet){
		"links are cut": func(f *fleet) {
			for _, leg := range f.toAgents {
				leg.cut()
				time.Sleep(500 * time.Millisecond)
			}
		},
		"servers are replaced": func(f *fleet) {
			for _, srv := range f.servers {
				stopInOrder(f.t, srv.Process)
				f.restart(srv)
				connected(f.t, f.agent, 2, patience)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 2, flags{
				server: []string{"--graceful-shutdown-timeout=2m"},
				agent:  []string{"--agent-id=agent-1", "--graceful-shutdown-timeout=10m"},
			})
			s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
			before := f.agent
			f.startAgent()
			testutil.NoError(t, before.Signal(syscall.SIGTERM))
			eventually(t, patience, "it drains", func() (bool, any) {
				out := before.Output()
				return strings.Contains(out, "draining: servers were told"), out
			})
			for range scaled(2, 10) {
				s.harm()
				harm(f)
			}
			s.end()
			code, err := before.Wait(2 * patience) // an end whose other end is gone without a word stays for a window
			testutil.Holds(t, code == 0 && err == nil, "the agent ends: %d, %v\n%s", code, err, before.Output())
		})
	}
}
