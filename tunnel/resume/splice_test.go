package resume

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// splicedFake is a stream that notes what it is called for.
type splicedFake struct {
	before link.Joined
	joint  link.Joint
	calls  []string
	slow   func() // runs in the first Acknowledge
}

func (f *splicedFake) note(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *splicedFake) Join(j link.Joint) link.Joined {
	f.joint = j
	return f.before
}

func (f *splicedFake) Acknowledge(a link.Ack) {
	if slow := f.slow; slow != nil {
		f.slow = nil
		slow()
	}
	f.note("ACK %d", a.Offset)
}

func (f *splicedFake) BoundCredit(limit uint64) bool {
	f.note("bound %d", limit)
	return limit < 100
}

func (f *splicedFake) ResetBehind(cause error) { f.note("reset %d", tunnel.CodeOf(cause)) }

func (f *splicedFake) SendMove() { f.note("MOVE") }

func (f *splicedFake) want(t *testing.T, calls ...string) {
	t.Helper()
	testutil.EqualSlices(t, f.calls, calls, "calls")
	f.calls = nil
}

// What happens on one stream is done on the other, also what has happened before the
// two were joined.
func TestStreamsShareTheirFate(t *testing.T) {
	a := &splicedFake{before: link.Joined{Ack: &link.Ack{Offset: 7}, Limit: 10, Move: true}}
	b := &splicedFake{before: link.Joined{Limit: 20, Failed: &tunnel.ResetError{Code: tunnel.CodeMemory}}}
	join(a, b)
	b.want(t, "ACK 7", "bound 10", "MOVE")
	a.want(t, "bound 20", "reset 8")
	a.joint.Acked(link.Ack{Offset: 9})
	testutil.Equal(t, a.joint.Credited(99), true, "a bound that was outgrown is no news")
	testutil.Equal(t, a.joint.Credited(100), false, "one that was not is")
	b.joint.MoveAsked()
	b.joint.FailedBehind(tunnel.Lost(tunnel.LossCut))
	b.want(t, "ACK 9", "bound 99", "bound 100")
	a.want(t, "MOVE", "reset 5")
}

// An acknowledgement that comes while an earlier one is passed on goes behind that one:
// the last that is sent counts.
func TestAcknowledgementsKeepTheirOrder(t *testing.T) {
	passed := make(chan struct{})
	from, to := &splicedFake{before: link.Joined{Ack: &link.Ack{Offset: 1}}}, new(splicedFake)
	h := &joint{to: to}
	to.slow = func() {
		go func() { h.Acked(link.Ack{Offset: 2}); close(passed) }()
		time.Sleep(20 * time.Millisecond)
	}
	h.attach(from)
	<-passed
	to.want(t, "ACK 1", "bound 0", "ACK 2")
}

// Only streams of connections that may outlive them are joined.
func TestOthersAreLeftAlone(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		far       tunnel.Conn
		err       error
		resume    *tunnel.Resume
		answerErr error
	}{
		"failed dial":     {err: failed, resume: new(tunnel.Resume)},
		"no stream":       {far: tunnel.Wrap(nil), resume: new(tunnel.Resume)},
		"plain":           {far: new(link.Stream)},
		"refused by peer": {far: new(link.Stream), resume: new(tunnel.Resume), answerErr: failed},
	} {
		t.Run(name, func(t *testing.T) {
			dial := tunnel.HandlerFunc(func(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
				ended(testutil.Err(answer(c.far, c.err)))
			})
			flow := tunnel.NewFlow("tcp", "x:1")
			flow.Resume = c.resume
			err := tunnel.Forward(t.Context(), Splice(dial), flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
				testutil.Equal(t, far, c.far, "the answer")
				testutil.Equal(t, err, c.err, "its error")
				return nil, c.answerErr // which would panic if it were joined
			})
			testutil.Equal(t, err, c.answerErr, "the outcome")
		})
	}
}
