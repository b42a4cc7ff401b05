package link_test

import (
	"errors"
	"io"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A link that ends tells its streams, its own status and its figures why. All streams
// are told by one error, so that losing many allocates nothing for each.
func TestLostLinkTellsItsCause(t *testing.T) {
	goAway := func(code uint16) func(*rig) {
		return func(r *rig) { r.send(frame{tGoAway, 0, 0, u16(code, "text")}) }
	}
	for name, c := range map[string]struct {
		end  func(*rig)
		want tunnel.LossCause
		code link.GoAwayCode // of the peer's goodbye, if it says one
	}{
		"cut":                  {func(r *rig) { _ = r.conn.Close() }, tunnel.LossCut, 0},
		"peer shuts down":      {goAway(4), tunnel.LossClosed, 4},
		"peer refuses":         {goAway(2), tunnel.LossClosed, 2},
		"peer saw a violation": {goAway(1), tunnel.LossViolated, 1},
		"peer keeps another":   {goAway(3), tunnel.LossReplaced, 3},
		"peer violates":        {func(r *rig) { r.send(helloFrame(1)) }, tunnel.LossViolated, 0},
		"closed here":          {func(r *rig) { go r.ses.Close() }, tunnel.LossLocal, 0},
		"another is kept here": {func(r *rig) { go r.ses.CloseWith(link.GoAwayDuplicate, "") }, tunnel.LossReplaced, 0},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := tcpPair(t)
			r := newRig(t, near, far, true, link.Config{})
			_, first := r.dialed()
			_, second := r.dialed()
			c.end(r)
			go func() { _, _ = io.Copy(io.Discard, r.conn) }()
			<-r.ses.Done()
			_, err1 := first.Read(make([]byte, 1))
			_, err2 := second.Read(make([]byte, 1))
			testutil.Equal(t, tunnel.CodeOf(err1), tunnel.CodeLost, "the code that a stream reads")
			testutil.Equal(t, tunnel.LossOf(err1), c.want, "the cause")
			testutil.Equal(t, err1, err2, "the error of the second stream")
			testutil.Equal(t, testutil.Err(first.Write([]byte("x"))), err1, "the error of a write")
			var bye *link.GoAwayError
			if err := r.ses.Err(); errors.As(err, &bye) != (c.code != 0) || bye != nil && (bye.Code != c.code || bye.Text != "text") {
				t.Errorf("the link ended with %v, want the peer's goodbye %v", err, c.code)
			}
			testutil.Equal(t, tunnel.LossOf(r.ses.Err()), c.want, "the cause of the link's end")
			testutil.Equal(t, link.LossFields(r.ses.Err())["cause"], any(c.want.Label()), "its field")
			var once link.Losses
			once[c.want] = 1
			err := testutil.Err(r.ses.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))
			testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailAgentLost, "a dial on it")
			testutil.Equal(t, r.ses.Stats().Lost, once, "losses that are counted")
			_ = r.ses.Close()
		})
	}
}

// What no link has ended with has no cause, nor has a link that is up.
func TestNoCauseWithoutALoss(t *testing.T) {
	for _, err := range []error{nil, io.EOF, errors.New("rpc error"), &tunnel.ResetError{Code: tunnel.CodeLost}} {
		testutil.Equal(t, tunnel.LossOf(err), tunnel.LossUnknown, "cause of %v", err)
		_, told := link.LossFields(err)["cause"]
		testutil.Equal(t, told, false, "%v is logged with a cause", err)
	}
}
