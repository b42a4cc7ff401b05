package link

import (
	"io"
	"net"
	"testing"
	"time"

	"konnectivity/internal/testutil"
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
	testutil.Equal(t, len(s.unacked), 3, "streams that are kept")
	for _, step := range []struct {
		after  time.Duration
		before func()
		late   []*Stream
		kept   int
	}{
		{ackTime - 1, func() {}, nil, 3},
		{1, func() { acked.carrier.note(Ack{}, endIn) }, []*Stream{left}, 2},
		{ackTime - 1, func() { read.recv.end = net.ErrClosed }, nil, 2},
		{1, func() {}, []*Stream{acked, read}, 0},
		{ackTime, func() {}, nil, 0},
	} {
		now = now.Add(step.after)
		step.before()
		late := s.overdue(now, ackTime, func(*Stream) bool { return true })
		for _, st := range late {
			s.remove(st)
		}
		testutil.EqualSlices(t, late, step.late, "overdue at %v", now.Unix())
		testutil.Equal(t, len(s.unacked), step.kept, "kept at %v", now.Unix())
	}
}
