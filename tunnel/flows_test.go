package tunnel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// judged is a Forwarder whose connections are judged by their address.
type judged struct {
	*tunnel.Forwarder
	denied  atomic.Pointer[string] // what denied addresses begin with; nil: none is
	dialing func()                 // where not nil, each dial calls it
	running sync.WaitGroup
}

var errDenied = errors.New("denied")

func newJudged(t *testing.T) *judged {
	j := &judged{}
	j.Forwarder = &tunnel.Forwarder{Flows: &tunnel.Flows{Judge: func(f *tunnel.Flow) error {
		if p := j.denied.Load(); p != nil && strings.HasPrefix(f.Address, *p) {
			return errDenied
		}
		return nil
	}}}
	t.Cleanup(func() {
		j.deny("")
		j.running.Wait()
	})
	return j
}

func (j *judged) deny(prefix string) (ended int) {
	j.denied.Store(&prefix)
	return j.Flows.JudgeAll()
}

// connect returns the outer ends of a connection, and how it ends.
func (j *judged) connect(t *testing.T, address string) (client, target *net.TCPConn, result chan error) {
	client, near := testutil.Pair(t)
	far, target := testutil.Pair(t)
	result = make(chan error, 1)
	own := *j.Forwarder
	own.Dialer = tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		if j.dialing != nil {
			j.dialing()
		}
		return tunnel.Wrap(far), nil
	})
	j.running.Go(func() {
		result <- tunnel.Forward(t.Context(), &own, tunnel.NewFlow("tcp", address), func(tunnel.Conn, error) (tunnel.Conn, error) { return tunnel.Wrap(near), nil })
	})
	return client, target, result
}

// pass carries a byte each way.
func pass(t *testing.T, a, b *net.TCPConn) {
	t.Helper()
	for _, way := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		testutil.Must(way[0].Write([]byte("x")))(t)
		testutil.Must(io.ReadFull(way[1], make([]byte, 1)))(t)
	}
}

// A change ends exactly the connections that are not allowed any more, for both ends, and
// leaves the others alone. Those that ended earlier are not judged.
func TestChangesEndWhatIsNotAllowed(t *testing.T) {
	j := newJudged(t)
	_, past, over := j.connect(t, "denied:0")
	_ = past.SetLinger(0)
	_ = past.Close()
	<-over
	var stay, leave [][2]*net.TCPConn
	var ends []chan error
	for range 20 {
		client, target, _ := j.connect(t, "allowed:1")
		stay = append(stay, [2]*net.TCPConn{client, target})
		client, target, end := j.connect(t, "denied:1")
		leave, ends = append(leave, [2]*net.TCPConn{client, target}), append(ends, end)
	}
	for _, c := range slices.Concat(stay, leave) {
		pass(t, c[0], c[1])
	}
	testutil.Equal(t, j.deny("denied"), len(leave), "connections that were ended")
	for i, c := range leave {
		testutil.Equal(t, tunnel.CodeOf(<-ends[i]), tunnel.CodePolicy, "why it ended")
		for _, end := range c {
			testutil.Equal(t, tunnel.CodeOf(testutil.Err(end.Read(make([]byte, 1)))), tunnel.CodePeerReset, "what an end reads")
		}
	}
	for _, c := range stay {
		pass(t, c[0], c[1])
	}
	testutil.Equal(t, j.deny(""), len(stay), "connections that were left")
	j.running.Wait()
	testutil.Equal(t, j.deny(""), 0, "connections that are still there")
}

// A connection whose dial was judged before a change, and which opens after it, is judged as
// it opens.
func TestDialsAcrossAChangeAreJudgedAgain(t *testing.T) {
	j := newJudged(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	j.dialing = func() { asked <- struct{}{}; <-answer }
	_, _, denied := j.connect(t, "denied:1")
	client, target, _ := j.connect(t, "allowed:1")
	<-asked
	<-asked
	testutil.Equal(t, j.deny("denied"), 0, "connections ended that were dialing")
	close(answer)
	testutil.Equal(t, tunnel.CodeOf(<-denied), tunnel.CodePolicy, "why it ended")
	pass(t, client, target)
}
