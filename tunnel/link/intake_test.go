package link

import (
	"cmp"
	"fmt"
	"runtime"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// What is refused is refused with the reason, and what resumes a connection has a
// bound of its own.
func TestIntakeRefuses(t *testing.T) {
	again := &tunnel.Resume{Epoch: 1}
	for name, c := range map[string]struct {
		in      intake
		streams int
		m       openMsg
		failure tunnel.Failure // 0: it is served
		want    string         // of the reason
	}{
		"a dial":                     {intake{dials: MaxDials - 1, resuming: MaxDials}, 1, openMsg{address: "a:1"}, 0, ""},
		"a connection that exists":   {intake{dials: MaxDials, resuming: MaxDials - 1}, 1, openMsg{address: "a:1", resume: again}, 0, ""},
		"a first one that may last":  {intake{dials: MaxDials}, 1, openMsg{address: "a:1", resume: &tunnel.Resume{}}, tunnel.FailExhausted, "4096 dials"},
		"without a Handler":          {intake{refuses: true}, 1, openMsg{address: "a:1"}, tunnel.FailDenied, "serves no connections"},
		"too many streams":           {intake{}, 3, openMsg{address: "a:1"}, tunnel.FailExhausted, "3 connections"},
		"too many dials":             {intake{dials: MaxDials}, 1, openMsg{address: "a:1"}, tunnel.FailExhausted, "4096 dials"},
		"too many that are resumed":  {intake{resuming: MaxDials}, 1, openMsg{address: "a:1", resume: again}, tunnel.FailExhausted, "4096 dials"},
		"an address that is none":    {intake{}, 1, openMsg{address: "a"}, tunnel.FailBadAddress, "port"},
		"none, and without a server": {intake{refuses: true}, 1, openMsg{address: "a"}, tunnel.FailBadAddress, "port"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreams(true)
			testutil.Equal(t, s.most, 65536, "streams that a peer may have")
			s.most = 3
			for range c.streams {
				s.add(&Stream{send: sendHalf{id: s.give()}})
			}
			m := cmp.Or(c.in.refusal(c.m, &s), new(openedMsg))
			testutil.Equal(t, m.failure, c.failure, "the failure")
			testutil.Contains(t, m.reason, c.want, "the reason")
		})
	}
}

// Each stream that enters is counted, by its kind, and with its client's share.
func TestIntakeCounts(t *testing.T) {
	in := intake{budget: NewBudget(1 << 20), clients: new(Clients)}
	one := in.enter(openMsg{client: 1}, "peer")
	same := in.enter(openMsg{client: 1, resume: &tunnel.Resume{Epoch: 2}}, "peer")
	testutil.Equal(t, same == one && one != in.budget, true, "two streams of a client have one share")
	testutil.Equal(t, in.enter(openMsg{}, "peer"), in.budget, "the budget of a stream of no client")
	lane := intake{budget: in.budget, clients: in.clients}
	testutil.Equal(t, lane.enter(openMsg{client: 1}, "peer"), one, "the share of a client on another lane")
	testutil.Equal(t, lane.enter(openMsg{client: 1}, "another") == one, false, "clients of two peers have one share")
	testutil.Equal(t, fmt.Sprint(in.dials, in.resuming, in.serving), "2 1 3", "dials, resumptions, and those served")
}

// TestSharesAreForgotten once nothing refers to them.
func TestSharesAreForgotten(t *testing.T) {
	c, whole := new(Clients), NewBudget(1<<20)
	kept := c.Share(tunnel.Origin{Server: "peer", Client: 1}, whole)
	_ = c.Share(tunnel.Origin{Server: "peer", Client: 2}, whole)
	testutil.Eventually(t, "a share that nothing refers to is forgotten", func() bool {
		runtime.GC()
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.known) == 1
	})
	testutil.Equal(t, c.Share(tunnel.Origin{Server: "peer", Client: 1}, whole), kept, "the other share, later")
	again := c.Share(tunnel.Origin{Server: "peer", Client: 1, Who: "cn:another"}, whole)
	testutil.Holds(t, again != kept, "a client that has the number now, has the share of the one before")
}

// Bounds are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	const security, sidecars = "../../docs/security.md", "../../docs/sidecars.md"
	testutil.Says(t, security, "An answer that a link's peer leaves unread counts as %v KiB", orphanMemory>>10)
	testutil.Says(t, security, "that it leaves unread count in steps of %v KiB", copiedUnit>>10)
	testutil.Says(t, security, "the id of a link's peer and of an agent %v bytes", MaxID)
	testutil.Says(t, sidecars, "name it after %v s of silence", int64(SilentAfter/time.Second))
	testutil.Says(t, sidecars, "After %v s the server drops it", int64(DefaultDeadAfter/time.Second))
	testutil.Says(t, "../../docs/operations.md", "in %v s where the server is near", int64(hopeTime/time.Second))
	testutil.Says(t, "../../docs/hypershift.md", "a link sends something every %v s", int64(DefaultPingInterval/time.Second))
	testutil.Says(t, "../../docs/link-protocol.md", "for up to %v s, if it has reset a stream within the last second", int64(farewell/time.Second))
	testutil.Says(t, "../../docs/link-protocol.md", "when no answer has come after %v s and four round trips", int64(absentTime/time.Second))
	testutil.Says(t, "../../docs/link-protocol.md", "when nothing has come for %v s behind payload", int64(doubtTime/time.Second))
}
