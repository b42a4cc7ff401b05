package tunnel

// Source is a Conn that can move what it receives by itself, which spares the
// goroutine that would wait for it. A link's streams are Sources: their bytes
// come out of one read loop.
type Source interface {
	// PushTo has c give what arrives straight to dst, as long as dst takes it
	// on the spot; count is told how many bytes that were. What dst does not
	// take, and the end of the stream, are the caller's: resume is called,
	// never twice at once, to fetch them with TakeChunks until there is
	// nothing left. After TakeChunks has returned an error it is not called
	// again. Neither must the caller Read from c then, nor anybody else
	// write to dst. count and, with only the end of the stream to fetch,
	// resume run on c's read loop and must not block. lost is called, on a
	// goroutine of its own, when the stream fails while resume runs: that may
	// be stuck with a dst that takes nothing, and would not hear of the cause.
	PushTo(dst Sink, count func(n int), resume func(), lost func(cause error))

	// TakeChunks is ReadChunks for resume: where that would wait, it returns
	// 0 and no error.
	TakeChunks(dst []Chunk) (n int, err error)
}

// Sink is a Conn that can take bytes on the spot or leave them, and whose
// CloseWrite does not block.
type Sink interface {
	// TryWrite sends what it can of c's payload without blocking and returns
	// how many bytes that is, 0 where it is busy. The caller keeps c; the
	// head bytes before its payload may be overwritten. What was taken may
	// be gathered until Flush.
	TryWrite(c Chunk) int

	// Flush sends what TryWrite gathered. It does not block: what the kernel
	// does not take now follows in the background.
	Flush()
}
