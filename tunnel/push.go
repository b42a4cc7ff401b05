package tunnel

// Source is a Conn that can push what it receives, which spares waking the
// goroutine that waits for it. A link's streams are Sources: their bytes come
// out of one read loop.
type Source interface {
	// PushTo lets c give what arrives straight to dst while a ReadChunks on
	// c waits, and tells count how many bytes that were; what dst does not
	// take on the spot wakes the reader as ever. Order is kept as long as
	// nobody but c's reader writes to dst. Call it before the first
	// ReadChunks. count must not block; it is not called concurrently.
	PushTo(dst Sink, count func(n int))
}

// Sink is a Conn that can take bytes on the spot or leave them.
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
