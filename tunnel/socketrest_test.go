//go:build !windows

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// setRest has sockets rest after d until the test ends.
func setRest(t *testing.T, d time.Duration) {
	before := restAfter
	restAfter = d
	t.Cleanup(func() { restAfter = before })
}

// restful is a relay between two sockets that need not keep a goroutine.
type restful struct {
	client, target net.Conn // the outer ends
	far            Conn     // the relay's end towards target
	ended          chan error
}

func startRestful(t *testing.T, ctx context.Context) *restful {
	client, a := testutil.Pair(t)
	b, target := testutil.Pair(t)
	r := &restful{client, target, Wrap(b), make(chan error, 1)}
	f := &Forwarder{Dialer: DialerFunc(func(context.Context, *Flow) (Conn, error) { return r.far, nil })}
	go f.Serve(ctx, new(Flow), func(Conn, error) (Conn, error) { return Wrap(a), nil }, func(err error) { r.ended <- err })
	return r
}

// awaitEnd returns why the relay ended.
func (r *restful) awaitEnd(t *testing.T) error {
	t.Helper()
	return testutil.Receive(t, "the relay ends", r.ended)
}

// awaitRests waits until n sockets rest, and no goroutine reads another one.
func awaitRests(t *testing.T, n int) {
	t.Helper()
	buf := make([]byte, 1<<20)
	testutil.Eventually(t, fmt.Sprintf("%d sockets rest", n), func() bool {
		stacks := string(buf[:runtime.Stack(buf, true)])
		return strings.Count(stacks, "tunnel.AwaitInput(") == n && !strings.Contains(stacks, "tunnel.(*Forwarder).Serve(")
	})
}

// pass has both ends say something.
func (r *restful) pass(t *testing.T) {
	t.Helper()
	for _, way := range [][2]net.Conn{{r.client, r.target}, {r.target, r.client}} {
		got := make([]byte, 1<<20)
		go func() { _, _ = way[0].Write(got) }()
		testutil.Must(io.ReadFull(way[1], make([]byte, len(got))))(t)
	}
}

// A connection between sockets that rest carries bytes as before, and ends as any other.
func TestSocketsRest(t *testing.T) {
	setRest(t, 10*time.Millisecond)
	cut := errors.New("cut")
	for name, c := range map[string]struct {
		end  func(r *restful, cancel context.CancelCauseFunc)
		want func(error) bool
	}{
		"in order": {func(r *restful, _ context.CancelCauseFunc) {
			_ = r.client.(*net.TCPConn).CloseWrite()
			_ = r.target.Close()
		}, func(err error) bool { return err == nil }},
		"reset": {func(r *restful, _ context.CancelCauseFunc) {
			_ = r.client.(*net.TCPConn).SetLinger(0)
			_ = r.client.Close()
		}, func(err error) bool { return err != nil }},
		"cut": {func(_ *restful, cancel context.CancelCauseFunc) { cancel(cut) },
			func(err error) bool { return err == cut }},
		"seized": {func(r *restful, _ context.CancelCauseFunc) { _, _ = Seize(r.far) },
			func(err error) bool { return err == ErrSeized }},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := startRestful(t, ctx)
			for range 2 {
				awaitRests(t, 2)
				r.pass(t)
			}
			awaitRests(t, 2)
			c.end(r, cancel)
			err := r.awaitEnd(t)
			testutil.Holds(t, c.want(err), "the relay ended with %v", err)
		})
	}
}

// A connection of which one direction has ended needs no goroutine for the other.
func TestHalfClosedConnectionRests(t *testing.T) {
	setRest(t, 10*time.Millisecond)
	r := startRestful(t, t.Context())
	_ = r.client.(*net.TCPConn).CloseWrite()
	testutil.Equal(t, testutil.Err(r.target.Read(make([]byte, 1))), io.EOF, "what the target reads")
	awaitRests(t, 1)
	go func() { _, _ = r.target.Write(make([]byte, 1<<20)) }()
	testutil.Must(io.ReadFull(r.client, make([]byte, 1<<20)))(t)
	awaitRests(t, 1)
	_ = r.target.Close()
	testutil.Succeeds(t, r.awaitEnd(t), "the relay")
}

// A socket can be seized at any moment, at rest or as it begins to rest: its relay ends at
// once, and the next Conn reads what arrives afterwards.
func TestSocketsAreSeizedAtAnyMoment(t *testing.T) {
	setRest(t, 100*time.Microsecond)
	for i := range 300 {
		r := startRestful(t, t.Context())
		if i%2 == 0 {
			_, _ = r.target.Write([]byte("x"))
			testutil.Must(io.ReadFull(r.client, make([]byte, 1)))(t)
		}
		time.Sleep(time.Duration(rand.IntN(int(4 * restAfter))))
		seized, _ := Seize(r.far)
		err := r.awaitEnd(t)
		testutil.Requires(t, err == ErrSeized, "the relay ended with %v", err)
		testutil.Must(r.target.Write([]byte("y")))(t)
		next, got := seized.Conn(), make([]byte, 1)
		testutil.NoError(t, testutil.Err(io.ReadFull(next, got)))
		testutil.Equal(t, string(got), "y", "what the next Conn reads")
		_ = next.Close()
	}
}

// A socket that rests takes the stack that a goroutine begins with, 2 KiB, and that is all of
// its connection's. One that has grown takes 4 KiB.
func TestSocketsRestOnSmallStacks(t *testing.T) {
	if !testutil.ExactMemory {
		t.Skip("the race detector needs more stack")
	}
	setRest(t, 10*time.Millisecond)
	const relays = 100
	before := testutil.Stacks()
	for range relays {
		startRestful(t, t.Context()).pass(t)
	}
	testutil.Eventually(t, "sockets rest on 3.5 KiB each", func() bool { return (testutil.Stacks()-before)/(2*relays) < 7<<9 })
}

// A wait or rest that begins as the socket is seized does not begin.
func TestSeizedSocketsNeitherWaitNorRest(t *testing.T) {
	near, _ := testutil.Pair(t)
	s := newSocket(near).(*socket)
	s.Rest(&direction{})
	testutil.Equal(t, s.wait(), true, "it waits")
	_, _ = Seize(s)
	s.restAt = time.Time{} // a new deadline is due
	testutil.Equal(t, s.wait(), false, "it waits, seized")
	testutil.Equal(t, s.rest(), ErrSeized, "a rest")
}
