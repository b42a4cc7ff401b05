package server

import (
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// laneLinks is how many links of the cluster's agents are lanes.
func (c *sharer) laneLinks() (n int) {
	books := &c.cluster().lanes[agents]
	books.mu.Lock()
	defer books.mu.Unlock()
	for _, g := range books.known.All() {
		n += g.links
	}
	return n
}

// guestCount is how many connections the cluster has.
func (c *sharer) guestCount() int {
	cl := c.cluster()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return len(cl.conns)
}

// An agent that is cut is not taken for lost, though the first of its lanes has long
// ended.
func TestAnAgentOfSeveralLanesThatIsCutIsNotLost(t *testing.T) {
	s := startSharers(t)
	red := s.add("red", "")
	hello := link.Hello{Role: link.RoleAgent, ID: "one", Group: laneGroupOfRed, Features: []string{link.FeatureLanes}}
	first, err := red.agentLink(hello)
	testutil.NoError(t, err)
	s.eventually("the first lane", func() bool { return red.laneLinks() == 1 })
	testutil.Must(red.agentLink(hello))(t)
	s.eventually("the second lane", func() bool { return red.laneLinks() == 2 })
	first.Close()
	s.eventually("the end of the first lane", func() bool { return red.laneLinks() == 1 && red.guestCount() == 1 })

	red.replaceCA("")
	status := ""
	s.eventually("the agent is gone", func() bool {
		_, status = s.get(s.admin, "/api/v1/status?tenant=red")
		return strings.Contains(status, "lastGone")
	})
	if !strings.Contains(status, `"ordered":true`) {
		t.Errorf("the status is %s", status)
	}
	if _, list := s.get(s.admin, "/api/v1/failures?tenant=red"); !strings.Contains(list, `"matched":0`) {
		t.Errorf("the failures are %s", list)
	}
}
