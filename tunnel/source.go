package tunnel

import "io"

// Source is the receiving side of a Conn. It is either read, by Read or
// ReadChunks from one goroutine at a time, or it delivers what arrives to a
// Receiver, which spares the goroutine that would wait for it.
type Source interface {
	// Read is the Conn's Read.
	Read(p []byte) (int, error)

	// ReadChunks waits for data as Read does, then takes what is there, at
	// most len(dst) chunks (len(dst) must not be 0), and returns how many.
	// The caller must release them. An error comes only with n == 0; the end
	// of the stream is io.EOF. Once Deliver has returned true it does not
	// wait: it returns 0 and no error where it would.
	ReadChunks(dst []Chunk) (n int, err error)

	// Deliver has the Source hand what arrives to r, for the rest of its
	// life; nobody may Read any more. It is called once. Where it returns
	// false, the Source has no goroutine that could do so, and must be read.
	//
	// It returns with the turn at the caller, as if r had been told that
	// something is Ready: nothing is taken by r before the caller has called
	// ReadChunks until that returned 0 and no error. Whoever has the turn may
	// call ReadChunks, and one goroutine only; the turn ends with that return,
	// or for good with an error.
	Deliver(r Receiver) bool
}

// Receiver is what a Source delivers to. Bytes reach it in order, and by one
// way at a time: by Take, or by the ReadChunks of whoever has the turn. The
// stream is over when ReadChunks has returned an error or End was called,
// whichever is first; after that only Fail may still come.
type Receiver interface {
	// Take gets a chunk that has just arrived, and keeps what it can deal
	// with on the spot: it returns how many bytes that is, 0 where it is busy.
	// It may overwrite the head bytes before the payload; the chunk remains
	// the Source's, which has whoever gets the next turn read what was left.
	// Take runs on the Source's read loop, with none of its locks held, while
	// nobody has the turn; it must not block.
	Take(c Chunk) int

	// Flush follows Take, at the latest when the read loop has nothing more
	// to read: what was taken may be gathered until then. It runs on the
	// read loop too and must not block.
	Flush()

	// Ready gives r the turn: bytes wait, or an end that not all was read
	// before. The Source may hold locks, so Ready must neither block nor
	// call the Source; it starts the goroutine that calls ReadChunks. It is
	// not called while somebody has the turn.
	Ready()

	// End tells that the stream has ended in order, with all bytes taken. It
	// runs on the read loop as Take does. A Source that has no loop to call
	// it on uses Ready instead, and io.EOF.
	End()

	// Fail tells that the stream has failed while somebody has the turn, who
	// may be stuck with what came before and would not hear of it. That
	// one gets the error too, once the rest was read. As Ready, it must
	// neither block nor call the Source.
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
