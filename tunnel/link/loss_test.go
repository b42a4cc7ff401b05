package link_test

import (
	"context"
	"errors"
	"io"
	"testing"

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
			if tunnel.CodeOf(err1) != tunnel.CodeLost || tunnel.LossOf(err1) != c.want {
				t.Errorf("a stream reads %v", err1)
			}
			if err1 != err2 {
				t.Error("two streams have an error each")
			}
			if _, err := first.Write([]byte("x")); err != err1 {
				t.Errorf("a stream is written with %v, read with %v", err, err1)
			}
			if err := context.Cause(r.ses.Life()); err != err1 {
				t.Errorf("the link's life ended with %v", err)
			}
			var bye *link.GoAwayError
			if err := r.ses.Err(); errors.As(err, &bye) != (c.code != 0) || bye != nil && (bye.Code != c.code || bye.Text != "text") {
				t.Errorf("the link ended with %v, want the peer's goodbye %v", err, c.code)
			}
			if err := r.ses.Err(); tunnel.LossOf(err) != c.want || link.LossFields(err)["cause"] != c.want.Label() {
				t.Errorf("the link ended with %v, which tells of %v", err, tunnel.LossOf(err))
			}
			var once link.Losses
			once[c.want] = 1
			if _, err := r.ses.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")); tunnel.FailureOf(err) != tunnel.FailAgentLost {
				t.Errorf("a dial on it fails with %v", err)
			}
			if lost := r.ses.Stats().Lost; lost != once {
				t.Errorf("counted as %v", lost)
			}
			_ = r.ses.Close()
		})
	}
}

// What no link has ended with has no cause, nor has a link that is up.
func TestNoCauseWithoutALoss(t *testing.T) {
	for _, err := range []error{nil, io.EOF, errors.New("rpc error"), &tunnel.ResetError{Code: tunnel.CodeLost}} {
		if cause := tunnel.LossOf(err); cause != tunnel.LossUnknown {
			t.Errorf("%v has the cause %v", err, cause)
		}
		if _, told := link.LossFields(err)["cause"]; told {
			t.Errorf("%v is logged with a cause", err)
		}
	}
}
