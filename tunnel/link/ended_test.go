package link_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// acceptor is the end of connections that outlive their streams: it ends its
// direction behind the peer's.
type acceptor struct {
	mu      sync.Mutex
	streams []*link.Stream
}

// Serve implements tunnel.Handler.
func (a *acceptor) Serve(_ context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	f.Resume.Granted = tunnel.Grant{Window: time.Minute}
	near, err := answer(nowhere{}, nil)
	if err != nil {
		ended(err)
		return
	}
	a.mu.Lock()
	a.streams = append(a.streams, near.(*link.Stream))
	a.mu.Unlock()
	_, _ = io.Copy(io.Discard, near)
	ended(near.CloseWrite())
}

// A connection that outlives its links takes its client's memory, in a process
// between its ends, until the last of it was acknowledged: one that a peer ends and
// does not acknowledge costs it as much as an open one.
func TestEndedStreamsTakeMemoryUntilAcknowledged(t *testing.T) {
	const n, each = 50, 10 << 10
	testutil.EachInBubble(t, map[string]func(opened []*link.Stream, far *acceptor, all []*link.Session){
		"acknowledged": func(opened []*link.Stream, far *acceptor, _ []*link.Session) {
			for i, st := range opened {
				st.Acknowledge(link.Ack{Offset: 1, End: true})
				far.streams[i].Acknowledge(link.Ack{Offset: 1, End: true})
			}
		},
		"reset": func(opened []*link.Stream, _ *acceptor, _ []*link.Session) {
			for _, st := range opened {
				_ = st.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
			}
		},
		"its link is lost":  func(_ []*link.Stream, _ *acceptor, all []*link.Session) { _ = all[0].Close() },
		"the other is lost": func(_ []*link.Stream, _ *acceptor, all []*link.Session) { _ = all[3].Close() },
	}, func(t *testing.T, settle func(opened []*link.Stream, far *acceptor, all []*link.Session)) {
		budget, far := link.NewBudget(64<<20), &acceptor{}
		all := between(t, resumes, budget, far, joinedTo)
		opened := thatEnded(t, all[0], n)
		time.Sleep(time.Minute)
		testutil.Equal(t, budget.Used(), n*each, "bytes of %d that have ended", n)
		settle(opened, far, all)
		synctest.Wait()
		testutil.Equal(t, budget.Used(), 0, "bytes held for nothing")
		for _, s := range all {
			_ = s.Close()
		}
	})
}

// Where a peer acknowledges nothing, memory for its clients does not run out: once it is
// scarce, connections that have ended make room, no more than it takes, and both of their ends are
// told.
func TestEndedStreamsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, each = 50, 10 << 10
		budget, far := link.NewBudget(n*each*6/5), &acceptor{}
		all := between(t, resumes, budget, far, joinedTo)
		for _, st := range thatEnded(t, all[0], n) {
			testutil.NoError(t, st.Close())
		}
		synctest.Wait()
		testutil.Equal(t, budget.Used(), n*each, "bytes at first")
		testutil.Equal(t, budget.Scarce(), true, "memory is scarce")
		time.Sleep(time.Minute)
		kept := int(budget.Used() / each)
		testutil.Holds(t, !budget.Scarce() && kept != 0,
			"of %d connections that have ended, %d are kept", n, kept)
		for _, end := range []*link.Session{all[0], all[3]} {
			testutil.Equal(t, end.Streams(), kept, "streams at an end")
		}
		for _, s := range all {
			_ = s.Close()
		}
	})
}
