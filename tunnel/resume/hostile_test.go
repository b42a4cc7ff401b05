package resume_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// hostile is a peer that opens streams as it likes, and a connection of its own
// with its destination's end.
type hostile struct {
	w     *world
	l     net.Listener // where the agent dials
	token [16]byte
	first *link.Stream
	far   net.Conn
}

func newHostile(t *testing.T) *hostile {
	return newHostileIn(t, &world{t: t})
}

func newHostileIn(t *testing.T, w *world) *hostile {
	w.begin(1, time.Hour)
	h := &hostile{w: w, l: w.listen(t), token: [16]byte{1, 2, 3}}
	h.begin(t)
	return h
}

// begin makes the connection.
func (h *hostile) begin(t *testing.T) {
	t.Helper()
	h.first = testutil.Must(h.open(&tunnel.Resume{Token: h.token, Window: time.Hour}, "dest:1"))(t)
	far := testutil.Opened(h.l.Accept())(t)
	h.far = far
}

func (h *hostile) open(r *tunnel.Resume, address string) (*link.Stream, error) {
	f := tunnel.NewFlow("tcp", address)
	f.Resume = r
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := h.w.servers[0].get(toOpener).a.Dial(ctx, f)
	if err != nil {
		return nil, err
	}
	return c.(*link.Stream), nil
}

// passes says whether bytes still get through to the destination by st.
func (h *hostile) passes(t *testing.T, st *link.Stream) {
	t.Helper()
	testutil.Must(st.Write([]byte("x")))(t)
	_ = h.far.SetReadDeadline(time.Now().Add(20 * time.Second))
	testutil.Must(io.ReadFull(h.far, make([]byte, 1)))(t)
}

// readsReset wants a destination to read a reset.
func readsReset(t *testing.T, far net.Conn) {
	t.Helper()
	_ = far.SetReadDeadline(time.Now().Add(20 * time.Second))
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(far.Read(make([]byte, 1)))), tunnel.CodePeerReset, "it reads")
}

// resume asks for a carrier of the connection.
func (h *hostile) resume(epoch uint32) (*link.Stream, error) {
	return h.open(&tunnel.Resume{Token: h.token, Window: time.Hour, Epoch: epoch}, "dest:1")
}

// attempt asks for the connection by a dial that has that number.
func (h *hostile) attempt(number uint32) (*link.Stream, error) {
	return h.open(&tunnel.Resume{Token: h.token, Window: time.Minute, Attempt: number}, "dest:1")
}

// Whoever does not know a token, or what it is for, learns nothing and changes
// nothing.
func TestForgedResumes(t *testing.T) {
	h := newHostile(t)
	for what, f := range map[string]struct {
		resume  tunnel.Resume
		address string
		want    tunnel.Failure
	}{
		"a token that nobody has": {tunnel.Resume{Token: [16]byte{9}, Window: time.Hour, Epoch: 1}, "dest:1", tunnel.FailGone},
		"no token":                {tunnel.Resume{Window: time.Hour, Epoch: 1}, "dest:1", tunnel.FailGone},
		"another address":         {tunnel.Resume{Token: h.token, Window: time.Hour, Epoch: 1}, "other:1", tunnel.FailGone},
	} {
		testutil.Equal(t, tunnel.FailureOf(testutil.Err(h.open(&f.resume, f.address))), f.want, "%s", what)
	}
	h.passes(t, h.first)
	testutil.Equal(t, h.w.agent.Len(), 1, "connections")
}

// An offset that was never sent ends the connection, in OPEN as in ACK.
func TestContradictoryOffsets(t *testing.T) {
	for what, lie := range map[string]func(h *hostile){
		"OPEN": func(h *hostile) {
			_, err := h.open(&tunnel.Resume{Token: h.token, Window: time.Hour, Epoch: 1, Taken: 1000}, "dest:1")
			testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailGone, "the resume: %v", err)
		},
		"ACK": func(h *hostile) { h.first.Acknowledge(link.Ack{Offset: 1000}) },
	} {
		h := newHostile(t)
		lie(h)
		t.Log(what)
		readsReset(t, h.far)
		eventually(t, func() bool { return h.w.agent.Len() == 0 })
	}
}

// A connection is resumed only if it could be dialed by now: else it ends, and its opener is
// told what it would be told of a dial. The policy is asked about what was asked for, and
// about the address that the connection has led to.
func TestResumesAreJudgedAsDials(t *testing.T) {
	var denied atomic.Pointer[tunnel.DialError]
	var asked, connected atomic.Value
	h := newHostileIn(t, &world{t: t, allow: func(f *tunnel.Flow, to net.Addr) error {
		asked.Store(f.Address)
		connected.Store(to.String())
		if err := denied.Load(); err != nil {
			return err
		}
		return nil
	}})
	st := testutil.Must(h.resume(1))(t)
	h.passes(t, st)
	testutil.Equal(t, asked.Load(), any("dest:1"), "what the policy was asked about")
	testutil.Equal(t, connected.Load(), any(h.far.LocalAddr().String()), "where it is")
	denied.Store(&tunnel.DialError{Failure: tunnel.FailDenied})
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(h.resume(2))), tunnel.FailDenied, "what its opener is told")
	readsReset(t, h.far)
	eventually(t, func() bool { return h.w.agent.Len() == 0 })
	testutil.Equal(t, h.w.agent.Stats().GivenUp["denied"], 1, "connections that count as denied")
}

// An opener that makes connections and leaves them, one after the other, has an
// agent wait for no more than it has room for: those that have waited longest end.
// Who goes on with one makes room.
func TestConnectionsThatAreLeftAreBounded(t *testing.T) {
	const alone = 3
	w := &world{t: t, atMost: alone}
	w.begin(1, time.Hour)
	h := &hostile{w: w, l: w.listen(t)}
	var fars []net.Conn
	leave := func(i int) {
		t.Helper()
		h.token = [16]byte{byte(i), 1}
		h.begin(t)
		fars = append(fars, h.far)
		h.passes(t, h.first)
		_ = h.first.Reset(&tunnel.ResetError{Code: tunnel.CodeLost})
	}
	stats := h.w.agent.Stats
	for i := range alone {
		leave(i)
		eventually(t, func() bool { return stats().Detached == int64(i+1) })
	}
	for i := range 2 {
		leave(alone + i)
		eventually(t, func() bool { return stats().GivenUp["memory"] == int64(i+1) && h.w.agent.Len() == alone })
		readsReset(t, fars[i]) // it has waited for the longest time
	}
	testutil.Must(h.resume(1))(t) // its carrier was the last to be lost
	leave(10)
	eventually(t, func() bool { return stats().Detached == alone && h.w.agent.Len() == alone+1 })
}
