package resume

import (
	"context"
	"errors"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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
