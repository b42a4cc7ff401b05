package tunnel

import (
	"io"
	"sync/atomic"
)

// half is one direction of a relay.
type half struct {
	relay    *Relay
	watch    *relayWatch
	dst, src Conn
	held     *atomic.Bool
	counters [2]*atomic.Int64
	read     func([]Chunk) (int, error)
	write    func([]Chunk) error
	inOrder  bool // all that src sent, and its end, was handed to dst

	// batch is here and not on the stack of pump, which TLS under it fills
	// to 4 KiB; a little more, and every connection would take 8.
	batch [batchSize]Chunk
}

// push has src move the bytes by itself, if both ends are able to, and says
// whether they are. The goroutine that resumes now and then is src's.
func (h *half) push() bool {
	h.write = chunkWriter(h.dst)
	source, pushes := h.src.(Source)
	sink, takes := h.dst.(Sink)
	if !pushes || !takes {
		h.read = chunkReader(h.src)
		return false
	}
	h.read = source.TakeChunks
	source.PushTo(sink, h.count, h.pump, h.lost)
	return true
}

// lost is called when src has failed and dst may take nothing any more. It
// bounds how long what came before may take to be delivered.
func (h *half) lost(cause error) {
	h.relay.cause.CompareAndSwap(nil, &cause)
	h.watch.limit(drainTime)
}

// pump moves bytes until the direction has ended, which it reports, or until a
// Source has nothing more for now.
func (h *half) pump() {
	for {
		n, err := h.read(h.batch[:])
		if n == 0 && err == nil {
			return
		}
		if err == nil {
			err = h.move(n)
		}
		if err == io.EOF {
			err = h.closeWrite()
			h.inOrder = err == nil
		} else if err == nil {
			continue
		}
		h.relay.finish(h.watch, err)
		h.relay.running.Done()
		return
	}
}

func (h *half) move(n int) error {
	size := 0
	for _, c := range h.batch[:n] {
		size += c.Len()
	}
	h.held.Store(true)
	if h.counters[0].Load()+int64(size) > takenUnread {
		h.watch.lookSoon()
	}
	err := h.write(h.batch[:n])
	h.held.Store(false)
	if err != nil {
		return &writeError{err}
	}
	h.count(size)
	return nil
}

func (h *half) closeWrite() error {
	if err := h.dst.CloseWrite(); err != nil {
		return &writeError{err}
	}
	return nil
}

// end frees dst once both directions are over and one has failed. What was
// handed to it in order is still delivered.
func (h *half) end(cause error) {
	if h.inOrder {
		_ = h.dst.Close()
		return
	}
	_ = h.dst.Reset(cause)
}

func (h *half) count(n int) {
	for _, c := range h.counters {
		if c != nil {
			c.Add(int64(n))
		}
	}
}

func chunkWriter(c Conn) func([]Chunk) error {
	if w, ok := c.(ChunkWriter); ok {
		return w.WriteChunks
	}
	return func(batch []Chunk) error {
		defer ReleaseAll(batch)
		for _, chunk := range batch {
			if _, err := c.Write(chunk.Bytes()); err != nil {
				return err
			}
		}
		return nil
	}
}

func chunkReader(c Conn) func([]Chunk) (int, error) {
	if r, ok := c.(ChunkReader); ok {
		return r.ReadChunks
	}
	size := probeSize
	return func(dst []Chunk) (int, error) {
		chunk := NewChunk(size)
		n, err := c.Read(chunk.Bytes())
		if n == 0 {
			chunk.Release()
			if err == nil {
				err = io.ErrNoProgress
			}
			return 0, err
		}
		// An error that came with data comes again on the next read.
		dst[0] = chunk.Slice(0, n)
		size = probeSize
		if n >= probeSize {
			size = ChunkSize
		}
		return 1, nil
	}
}
