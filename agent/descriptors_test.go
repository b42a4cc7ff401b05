package agent

import (
	"testing"

	"konnectivity/agent/egress"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// One client opens connections until it hears of no more. That leaves descriptors of the
// agent to others: to one of the same server, to one that another server gives the same
// number, and to those of an old server, which are one client. What ends is there again.
func TestAClientLeavesDescriptorsToOthers(t *testing.T) {
	ca, config := newCA(t)
	first, second, old := newTestServer(t, ca, "a", false), newTestServer(t, ca, "b", false), newTestServer(t, ca, "c", true)
	opts := testOptions(config, first.address(), second.address(), old.address())
	opts.Dialer = egress.New(egress.Options{Descriptors: 256})
	runAgent(t, opts)
	l, budget := testutil.Listen(t), shares.NewBudget(1<<30) // whose queue takes all connections
	dial := func(by peer, client uint64) (tunnel.Conn, error) {
		f := tunnel.NewFlow("tcp", l.Addr().String())
		f.Client = &tunnel.Client{Budget: budget.ShareNumbered(client)}
		return by.Dial(testutil.Context(t), f)
	}
	server := first.next()
	var held []tunnel.Conn
	c, err := dial(server, 1)
	for ; err == nil; c, err = dial(server, 1) {
		held = append(held, c)
	}
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailExhausted && len(held) >= 128,
		"a client alone has %d connections, then %v", len(held), err)
	others := map[string]func() (tunnel.Conn, error){
		"another client":            func() (tunnel.Conn, error) { return dial(server, 2) },
		"another server's client":   func() (tunnel.Conn, error) { return dial(second.next(), 1) },
		"a client of an old server": func() (tunnel.Conn, error) { return dial(old.next(), 0) },
	}
	for who, dial := range others {
		testutil.Succeeds(t, testutil.Err(dial()), "%s", who)
	}
	for _, c := range held {
		_ = c.Reset(nil)
	}
	testutil.Eventually(t, "it may have more again", func() bool { _, err := dial(server, 1); return err == nil })
}
