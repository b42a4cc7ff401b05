package resume

import (
	"context"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Splice returns a Handler for link.Config in a process between the ends, such as a server.
// It forwards by next. Where a connection may outlive its link, its stream is joined to
// the stream that next dialed (link.Join). It keeps nothing else of a connection.
func Splice(next tunnel.Handler) tunnel.Handler {
	return tunnel.HandlerFunc(func(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
		next.Serve(ctx, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
			near, answerErr := answer(far, err)
			dialed, linked := far.(*link.Stream)
			asked, ok := near.(*link.Stream)
			if err == nil && answerErr == nil && linked && ok && flow.Resume != nil {
				link.Join(asked, dialed)
			}
			return near, answerErr
		}, ended)
	})
}
