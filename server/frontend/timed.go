package frontend

import (
	"time"

	"konnectivity/tunnel"
)

// timed reports to observe how long each write to c takes.
func timed(c tunnel.Conn, observe func(time.Duration)) tunnel.Conn {
	return tunnel.With(c, tunnel.Parts{Out: &timedSink{next: c.Out(), observe: observe}})
}

type timedSink struct {
	next    tunnel.Sink
	observe func(time.Duration)
}

func (s *timedSink) Write(p []byte) (int, error) {
	start := time.Now()
	n, err := s.next.Write(p)
	s.observe(time.Since(start))
	return n, err
}

func (s *timedSink) WriteChunks(src []tunnel.Chunk) error {
	start := time.Now()
	err := s.next.WriteChunks(src)
	s.observe(time.Since(start))
	return err
}

// What never waits needs no measuring.

func (s *timedSink) Nonblocking() bool           { return s.next.Nonblocking() }
func (s *timedSink) TryWrite(c tunnel.Chunk) int { return s.next.TryWrite(c) }
func (s *timedSink) Flush()                      { s.next.Flush() }
