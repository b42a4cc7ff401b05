// Package splice joins two streams that carry one connection through a process between
// its ends, where the connection outlives them (docs/link-protocol.md §9, "Between the
// ends"). A relay carries the bytes; splice passes on the rest:
//
//	acknowledgements  ACK on one stream is sent on the other, unchanged
//	credit            one stream is granted little more than the other may send, until
//	                  its window has grown
//	fate              a stream that fails after its peer has ended its direction, when
//	                  no relay reads from it any more, has the other one reset
//	moves             MOVE goes toward the connection's opener
//
// It keeps nothing of a connection but which two streams belong together. Only the
// server uses it.
package splice

import (
	"context"
	"sync"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Forwarder returns a Handler for link.Config. It forwards by next. If a connection may
// outlive its link, it joins the connection's stream to the stream that next has dialed.
func Forwarder(next tunnel.Handler) tunnel.Handler { return forwarder{next} }

type forwarder struct{ next tunnel.Handler }

// Forward implements tunnel.Handler.
func (f forwarder) Forward(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer) error {
	return f.next.Forward(ctx, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		near, answerErr := answer(far, err)
		dialed, ok := far.(*link.Stream)
		if err == nil && answerErr == nil && ok && flow.Resume != nil {
			join(near.(*link.Stream), dialed)
		}
		return near, answerErr
	})
}

// stream is the part of a *link.Stream that is needed here.
type stream interface {
	Join(link.Joint) link.Joined
	Acknowledge(link.Ack)
	BoundCredit(limit uint64) (bound bool)
	ResetBehind(cause error)
	SendMove()
}

// join joins two streams for the rest of their lives.
func join(a, b stream) {
	halves := [2]half{{to: b}, {to: a}}
	halves[0].attach(a)
	halves[1].attach(b)
}

// half is the Joint of one stream. to is the connection's other stream.
type half struct {
	to stream

	mu sync.Mutex // keeps acknowledgements in order; taken before the lock of a link
}

// attach passes on the events of from, the past ones first.
func (h *half) attach(from stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := from.Join(h)
	if before.Ack != nil {
		h.to.Acknowledge(*before.Ack)
	}
	h.to.BoundCredit(before.Limit)
	if before.Move {
		h.to.SendMove()
	}
	if before.Failed != nil {
		h.to.ResetBehind(before.Failed)
	}
}

// Acked implements link.Watcher.
func (h *half) Acked(a link.Ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.to.Acknowledge(a)
}

// Lost implements link.Joint.
func (h *half) Lost(cause error) { h.to.ResetBehind(cause) }

// Move implements link.Joint.
func (h *half) Move() { h.to.SendMove() }

// Credited implements link.Joint.
func (h *half) Credited(limit uint64) (again bool) { return h.to.BoundCredit(limit) }
