package tunnel

import "io"

// Source is the receiving side of a Conn. It is either read, by Read or
// ReadChunks, from one goroutine at a time; or it delivers what arrives to a
// Receiver, on the goroutine that got it from the network (its read loop), which
// saves the goroutine that would wait for it.
//
// A Source that delivers knows at each moment who has the turn to read. While
// nobody has it, all that came was taken, and what comes next is offered to
// Take. Otherwise bytes wait in the Source until whoever has the turn has read
// them.
type Source interface {
	// Read is the Conn's Read.
	Read(p []byte) (int, error)

	// ReadChunks waits for data as Read does, then takes what is there, at
	// most len(dst) chunks (len(dst) must not be 0), and returns how many.
	// The caller must release them. An error comes only with n == 0; the end
	// of the stream is io.EOF.
	//
	// Once Deliver has returned true, only who has the turn may call
	// ReadChunks, and it does not wait: where it would, it returns 0 and no
	// error, which ends the turn. An error ends the stream.
	ReadChunks(dst []Chunk) (n int, err error)

	// Deliver has the Source deliver to r for the rest of its life. It is
	// called once, and Read not at all after it. Its caller has the turn
	// then: r is offered nothing until ReadChunks has been called as often as
	// it takes. Where Deliver returns false, nothing has changed: the Source
	// has no read loop to deliver on, and must be read.
	Deliver(r Receiver) bool
}

// Receiver is what a Source delivers to. Every byte reaches it once and in
// order, by Take or by ReadChunks. The stream is over for it when End was called
// or ReadChunks has returned an error, one of which happens at last, also where
// this end closes or resets the Conn (unless whoever has the turn reads no
// more). After that only Flush and Fail may still be called.
type Receiver interface {
	// Take is offered a chunk that has just arrived and keeps what it can
	// deal with on the spot: it returns how many bytes that is, 0 where it is
	// busy. The rest waits for the next turn. The chunk remains the Source's;
	// the head bytes before its payload may be overwritten. Take runs on the
	// read loop, which holds no locks then, and must not block. It may reset
	// or close the Conn; the end then comes as it always does, by Ready and
	// ReadChunks, and the rest of the chunk is dropped.
	Take(c Chunk) int

	// Flush is called after one or more Takes, at the latest before the read
	// loop waits for more. What was taken may be held back until then, to be
	// sent together. It runs on the read loop, too, and must not block.
	Flush()

	// Ready gives the turn to r, which is to start a goroutine that calls
	// ReadChunks. It is called while nobody has the turn, on any goroutine,
	// possibly with locks of the Source held: it must neither block nor call
	// the Source.
	Ready()

	// End tells that the stream has ended in order and all bytes were taken.
	// It runs on the read loop as Take does, while nobody has the turn. An
	// end that bytes still wait before is told by ReadChunks.
	End()

	// Fail tells that the stream has failed while somebody has the turn, who
	// may be stuck with what came before and not hear of it. ReadChunks
	// returns the same error once the rest was read. Fail is called as Ready
	// is: it must neither block nor call the Source.
	Fail(cause error)
}

// CopySource is the Source of a Reader that knows nothing of chunks. It holds
// a small buffer while it waits.
func CopySource(r io.Reader) Source { return &copySource{from: r, size: probeSize} }

type copySource struct {
	from io.Reader
	size int // of the next chunk
}

// probeSize is the buffer of a source that cannot hand over chunks while it
// has nothing to say. A read that fills it moves on to full chunks.
const probeSize = 2<<10 - Headroom

func (s *copySource) Read(p []byte) (int, error) { return s.from.Read(p) }

func (s *copySource) ReadChunks(dst []Chunk) (int, error) {
	chunk := NewChunk(s.size)
	n, err := s.from.Read(chunk.Bytes())
	if n == 0 {
		chunk.Release()
		if err == nil {
			err = io.ErrNoProgress
		}
		return 0, err
	}
	// An error that came with data comes again on the next read.
	dst[0] = chunk.Slice(0, n)
	s.size = probeSize
	if n >= probeSize {
		s.size = ChunkSize
	}
	return 1, nil
}

func (s *copySource) Deliver(Receiver) bool { return false }
