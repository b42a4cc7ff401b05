package registry

import (
	"math/rand/v2"
	"slices"

	"konnectivity/internal/memory"
	"konnectivity/tunnel"
)

// group is the agents that share one key of the index, such as an address, a
// prefix, or the default route. The registry's lock guards it. The zero value is
// empty.
type group struct {
	members memory.Map[agentKey, *member]
	serving []*member // those with a connection that is not draining
	rest    []*member // those that drain: the fallback
}

// member is one agent in a group.
type member struct {
	key   agentKey
	conns []*conn // in the order they joined: the first is preferred
	list  *[]*member
	at    int // index in *list
}

// count returns how many agents there are; a nil group has none.
func (g *group) count() int {
	if g == nil {
		return 0
	}
	return g.members.Len()
}

func (g *group) join(c *conn) {
	m := g.members.Get(c.agent.key())
	if m == nil {
		m = &member{key: c.agent.key()}
		g.members.Set(m.key, m)
	}
	m.conns = append(m.conns, c)
	g.place(m)
}

// leave takes out c, which has joined.
func (g *group) leave(c *conn) {
	m := g.members.Get(c.agent.key())
	m.conns = slices.DeleteFunc(m.conns, func(other *conn) bool { return other == c })
	if len(m.conns) == 0 {
		g.members.Delete(m.key)
		m.unlist()
		return
	}
	g.place(m)
}

// changed puts c's agent where it belongs after c began to drain.
func (g *group) changed(c *conn) {
	g.place(g.members.Get(c.agent.key()))
}

// place moves m to the list it belongs to.
func (g *group) place(m *member) {
	want := &g.rest
	if slices.ContainsFunc(m.conns, func(c *conn) bool { return !c.draining }) {
		want = &g.serving
	}
	m.unlist()
	m.list, m.at = want, len(*want)
	*want = append(*want, m)
}

func (m *member) unlist() {
	if m.list == nil {
		return
	}
	list := *m.list
	last := len(list) - 1
	list[m.at] = list[last]
	list[m.at].at = m.at
	list[last] = nil
	*m.list, m.list = list[:last], nil
}

// pick takes the better of two random agents that serve, or of two that drain
// where none serves. Two choices are nearly as good as looking at all, and do
// not send a burst of dials to the same least loaded agent (Mitzenmacher, "The
// Power of Two Choices in Randomized Load Balancing"). A nil group has none.
func (g *group) pick(not *conn, now tunnel.Moment) *conn {
	if g == nil {
		return nil
	}
	if c := pickFrom(g.serving, not, now); c != nil {
		return c
	}
	return pickFrom(g.rest, not, now)
}

func pickFrom(list []*member, not *conn, now tunnel.Moment) *conn {
	n := len(list)
	if n == 0 {
		return nil
	}
	i := rand.IntN(n)
	j := i
	if n > 1 {
		j = (i + 1 + rand.IntN(n-1)) % n
	}
	a, b := list[i].preferred(not), list[j].preferred(not)
	switch {
	case a == nil:
		return b
	case b == nil || a == b || !b.better(a, now):
		return a
	default:
		return b
	}
}

// preferred is the agent's first connection that is not draining, else its
// first; never not. Agents close the later of two connections to one server
// (upstream's pkg/agent/clientset.go), so the first lasts longest.
func (m *member) preferred(not *conn) *conn {
	var fallback *conn
	for _, c := range m.conns {
		switch {
		case c == not:
		case !c.draining:
			return c
		case fallback == nil:
			fallback = c
		}
	}
	return fallback
}
