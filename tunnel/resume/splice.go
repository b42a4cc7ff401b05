package resume

import (
	"context"
	"sync"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Splice returns a Handler for link.Config in a process between the ends, such as a server.
// It forwards by next. Where a connection may outlive its link, its stream is joined to
// the stream that next dialed. A relay carries the bytes, and the Handler everything else
// that one end has to know of the other:
//
//	acknowledgements  ACK on one stream is sent on the other, unchanged
//	credit            one stream is granted little more than the other may send, until
//	                  its window has grown
//	fate              a stream that fails after its peer has ended its direction, when
//	                  no relay reads from it any more, has the other one reset
//	moves             MOVE goes toward the connection's opener
//
// It keeps nothing of a connection but which two streams belong together.
func Splice(next tunnel.Handler) tunnel.Handler {
	return tunnel.HandlerFunc(func(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
		next.Serve(ctx, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
			near, answerErr := answer(far, err)
			dialed, linked := far.(*link.Stream)
			asked, ok := near.(*link.Stream)
			if err == nil && answerErr == nil && linked && ok && flow.Resume != nil {
				join(asked, dialed)
			}
			return near, answerErr
		}, ended)
	})
}

// spliced is the part of a *link.Stream that join needs.
type spliced interface {
	Join(link.Joint) link.Joined
	Acknowledge(link.Ack)
	BoundCredit(limit uint64) (bound bool)
	ResetBehind(cause error)
	SendMove()
}

// join joins two streams for the rest of their lives.
func join(a, b spliced) {
	joints := [2]joint{{to: b}, {to: a}}
	joints[0].attach(a)
	joints[1].attach(b)
}

// joint is the link.Joint of one stream. to is the connection's other stream.
type joint struct {
	to spliced

	mu sync.Mutex // keeps acknowledgements in order; taken before the lock of a link
}

// attach passes on the events of from, the past ones first.
func (j *joint) attach(from spliced) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := from.Join(j)
	if before.Ack != nil {
		j.to.Acknowledge(*before.Ack)
	}
	j.to.BoundCredit(before.Limit)
	if before.Move {
		j.to.SendMove()
	}
	if before.Failed != nil {
		j.to.ResetBehind(before.Failed)
	}
}

// Acked implements link.Joint.
func (j *joint) Acked(a link.Ack) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.to.Acknowledge(a)
}

// FailedBehind implements link.Joint.
func (j *joint) FailedBehind(cause error) { j.to.ResetBehind(cause) }

// MoveAsked implements link.Joint.
func (j *joint) MoveAsked() { j.to.SendMove() }

// Credited implements link.Joint.
func (j *joint) Credited(limit uint64) (again bool) { return j.to.BoundCredit(limit) }
