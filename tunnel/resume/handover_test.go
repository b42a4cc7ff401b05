//go:build unix

package resume_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// serveFar is what serves a connection whose destination is connected already.
func serveFar(far tunnel.Conn) tunnel.Handler {
	return &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return far, nil })}
}

// succeed lets another Manager be the agent, and hands it all connections of the one before.
// Some batches come back, as if the other process had died.
func (w *world) succeed() (moved, back int) {
	old := w.agent
	next := resume.New(resume.Options{Window: 8 * time.Second, Budget: link.NewBudget(1 << 30)})
	old.SetHandingOver(true)
	next.SetHandingOver(true)
	w.agent = next
	w.before = append(w.before, old)
	for _, s := range w.servers {
		defer s.get(toAgent).close()
		s.linkFar()
	}
	for of := old.Moves(); ; {
		moves := of.Next(1+rand.IntN(8), rand.IntN(1<<20))
		if len(moves) == 0 {
			break
		}
		if rand.IntN(4) == 0 {
			for _, m := range moves {
				testutil.NoError(w.t, m.Undo(serveFar))
			}
			back += len(moves)
			continue
		}
		for _, m := range moves {
			w.hand(m, next)
		}
		moved += len(moves)
	}
	next.SetHandingOver(false)
	return moved, back
}

// hand gives next what a message and a descriptor can carry of m.
func (w *world) hand(m *resume.Move, next *resume.Manager) {
	w.t.Helper()
	testutil.NoError(w.t, m.Check())
	var s resume.Snapshot
	testutil.NoError(w.t, json.Unmarshal(testutil.Must(json.Marshal(m.Snapshot))(w.t), &s))
	for _, c := range m.Kept {
		s.Kept = append(s.Kept, tunnel.CopyChunk(c.Bytes()))
	}
	s.Owed = m.Owed
	testutil.Equal(w.t, s.Network, "tcp", "the network of a connection that is handed over")
	if s.Left {
		m.Done()
		testutil.NoError(w.t, next.Adopt(s, nil, serveFar))
		return
	}
	fd := -1
	testutil.NoError(w.t, m.Socket.Control(func(of uintptr) { fd, _ = syscall.Dup(int(of)) }))
	f := os.NewFile(uintptr(fd), "")
	far := testutil.Must(net.FileConn(f))(w.t)
	_ = f.Close()
	m.Done()
	testutil.NoError(w.t, next.Adopt(s, tunnel.FromSeized(far, s.FinSent), serveFar))
}

// Transfers go on, both ways, while one process after the other takes over the agent's
// ends, and while links are cut meanwhile.
func TestTransfersOutliveTheAgent(t *testing.T) {
	moved, back := 0, 0
	w := disturbed(t, func(w *world, over <-chan struct{}) {
		for !tunnel.Closed(over) {
			m, b := w.succeed()
			moved, back = moved+m, back+b
			if rand.IntN(3) > 0 {
				w.calm(over)
			}
			select {
			case <-over:
			case <-time.After(rand.N(50 * time.Millisecond)):
			}
		}
	})
	t.Logf("the opener: %+v", w.opener.Stats())
	t.Logf("%d connections were handed over, %d came back", moved, back)
	testutil.AtLeast(t, moved, 8, "connections that were handed over")
	for _, m := range append(w.before, w.agent) {
		s := m.Stats()
		testutil.Equal(t, fmt.Sprint(s.Conns, s.Detached, s.Kept), "0 0 0", "connections, detached ones and bytes left")
	}
}
