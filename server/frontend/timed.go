package frontend

import (
	"net"
	"time"

	"konnectivity/tunnel"
)

// timed tells observe how long each write to c takes.
func timed(c tunnel.Conn, observe func(time.Duration)) tunnel.Conn {
	t := &timedConn{Conn: c, observe: observe}
	r, reads := c.(tunnel.ChunkReader)
	w, writes := c.(tunnel.ChunkWriter)
	if !reads || !writes {
		return t
	}
	chunks := &timedChunks{timedConn: t, ChunkReader: r, next: w}
	if s, ok := c.(tunnel.Sink); ok {
		return &timedSink{timedChunks: chunks, Sink: s}
	}
	return chunks
}

// timedSink takes bytes on the spot as c does. That never waits, so there is
// nothing to tell.
type timedSink struct {
	*timedChunks
	tunnel.Sink
}

type timedConn struct {
	tunnel.Conn
	observe func(time.Duration)
}

// NetConn is what is timed.
func (t *timedConn) NetConn() net.Conn { return t.Conn }

func (t *timedConn) Write(p []byte) (int, error) {
	start := time.Now()
	n, err := t.Conn.Write(p)
	t.observe(time.Since(start))
	return n, err
}

type timedChunks struct {
	*timedConn
	tunnel.ChunkReader
	next tunnel.ChunkWriter
}

// WriteChunks implements tunnel.ChunkWriter.
func (t *timedChunks) WriteChunks(src []tunnel.Chunk) error {
	start := time.Now()
	err := t.next.WriteChunks(src)
	t.observe(time.Since(start))
	return err
}
