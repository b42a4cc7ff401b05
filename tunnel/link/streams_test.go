package link

import (
	"io"
	"slices"
	"testing"
	"time"
)

// A stream that has ended is kept for its acknowledgements until nobody has used it
// for a time.
func TestAcknowledgementsAreAwaitedForATime(t *testing.T) {
	s, now := newStreams(true), time.Unix(1000, 0)
	stream := func(state state, end error) *Stream {
		st := &Stream{state: state, recv: recvHalf{end: end}, send: sendHalf{id: s.give()}}
		s.awaitAcks(st, now)
		return st
	}
	left := stream(ended, errClosed)
	acked := stream(ended, errClosed)
	read := stream(ended, io.EOF)
	stream(closed, errClosed)
	for _, step := range []struct {
		after  time.Duration
		before func()
		late   []*Stream
		kept   int
	}{
		{ackTime - 1, func() {}, nil, 3},
		{1, func() { acked.carry.acks = true }, []*Stream{left}, 2},
		{ackTime - 1, func() { read.recv.end = errClosed }, nil, 2},
		{1, func() {}, []*Stream{acked, read}, 0},
		{ackTime, func() {}, nil, 0},
	} {
		now = now.Add(step.after)
		step.before()
		if late := s.overdue(now); !slices.Equal(late, step.late) || len(s.unacked) != step.kept {
			t.Errorf("at %v, %d are overdue and %d kept, want %d and %d", now.Unix(), len(late), len(s.unacked), len(step.late), step.kept)
		}
	}
}
