package tunnel

import "io"

// Sink is the sending side of a Conn. Nobody mixes the calls of two goroutines
// but for Nonblocking, and for Flush, which may come at any time.
type Sink interface {
	// Write is the Conn's Write.
	Write(p []byte) (int, error)

	// WriteChunks writes all payload in order, blocks as Write does, and
	// releases every chunk, also when it fails.
	WriteChunks(src []Chunk) error

	// Nonblocking says whether TryWrite takes anything at times and the
	// Conn's CloseWrite never blocks, so that both may be called on a read
	// loop. It does not change.
	Nonblocking() bool

	// TryWrite sends what it can of c's payload without blocking and returns
	// how many bytes that is, 0 where it is busy. The caller keeps c; the
	// head bytes before its payload may be overwritten. What was taken may
	// be gathered until Flush. A failure is for the next Write to tell.
	TryWrite(c Chunk) int

	// Flush sends what TryWrite gathered. It does not block: what the kernel
	// does not take now follows in the background.
	Flush()
}

// copySink is the Sink of a Writer that knows nothing of chunks.
type copySink struct{ to io.Writer }

func (s *copySink) Write(p []byte) (int, error) { return s.to.Write(p) }

func (s *copySink) WriteChunks(src []Chunk) error {
	defer ReleaseAll(src)
	for _, chunk := range src {
		if _, err := s.to.Write(chunk.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func (*copySink) Nonblocking() bool  { return false }
func (*copySink) TryWrite(Chunk) int { return 0 }
func (*copySink) Flush()             {}
