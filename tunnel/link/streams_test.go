package link

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// An ended stream is kept for its acknowledgements until it is closed, or has not been in
// use for a time: ten seconds of a thousand dials each hold a hundred megabytes.
func TestAcknowledgementsAreAwaitedForATime(t *testing.T) {
	s, now := newStreams(true), time.Unix(1000, 0)
	stream := func(end error) *Stream {
		st := &Stream{state: ended, recv: recvHalf{end: end}, send: sendHalf{id: s.give()}}
		s.add(st)
		s.awaitAcks(st, now)
		return st
	}
	left := stream(net.ErrClosed)
	acked := stream(net.ErrClosed)
	read := stream(io.EOF)
	s.remove(stream(net.ErrClosed))
	if len(s.unacked) != 3 {
		t.Errorf("%d are kept, want 3: one is closed", len(s.unacked))
	}
	for _, step := range []struct {
		after  time.Duration
		before func()
		late   []*Stream
		kept   int
	}{
		{ackTime - 1, func() {}, nil, 3},
		{1, func() { acked.carrier.used = true }, []*Stream{left}, 2},
		{ackTime - 1, func() { read.recv.end = net.ErrClosed }, nil, 2},
		{1, func() {}, []*Stream{acked, read}, 0},
		{ackTime, func() {}, nil, 0},
	} {
		now = now.Add(step.after)
		step.before()
		late := s.overdue(now, ackTime)
		for _, st := range late {
			s.remove(st)
		}
		if !slices.Equal(late, step.late) || len(s.unacked) != step.kept {
			t.Errorf("at %v, %d are overdue and %d kept, want %d and %d", now.Unix(), len(late), len(s.unacked), len(step.late), step.kept)
		}
	}
}
