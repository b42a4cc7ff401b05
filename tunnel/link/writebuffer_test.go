package link

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// buffered is a write buffer that the session has taken, and the far end of its socket.
func buffered(t *testing.T) (*writeBuffer, net.Conn) {
	t.Helper()
	near, far := testutil.Pair(t)
	c := Buffered(near).(*writeBuffer)
	c.take(func() {}, new(atomic.Uint64))
	return c, far
}

// A link that has sent all that it had holds no buffer for more.
func TestEmptyWriteBufferHoldsNoMemory(t *testing.T) {
	testutil.Each(t, map[string]func(*writeBuffer) bool{
		"flush":    func(c *writeBuffer) bool { return c.flush() == nil },
		"tryFlush": func(c *writeBuffer) bool { return !c.tryFlush() },
	}, func(t *testing.T, flush func(*writeBuffer) bool) {
		c, far := buffered(t)
		for _, text := range []string{"one", "two"} {
			_, _ = io.WriteString(c, text)
			testutil.Equal(t, c.block != nil, true, "it holds a block")
			testutil.Equal(t, string(c.buf), text, "what it holds")
			testutil.Equal(t, flush(c), true, "the kernel takes three bytes")
			testutil.Equal(t, c.block == nil && c.buf == nil, true, "an empty one holds no block")
			got := make([]byte, len(text))
			testutil.NoError(t, testutil.Err(io.ReadFull(far, got)))
			testutil.Equal(t, string(got), text, "what comes")
		}
	})
}

// What the kernel takes in parts arrives whole, also while a second one
// borrows from the same pool.
func TestWriteBufferIsFlushedInParts(t *testing.T) {
	c, far := buffered(t)
	other, otherFar := buffered(t)
	go func() { _, _ = io.Copy(io.Discard, otherFar) }()
	const round, rounds = 64 << 10, 200
	got := make(chan []byte)
	go func() {
		time.Sleep(10 * time.Millisecond) // until the kernel takes no more
		p := make([]byte, round*rounds)
		_, _ = io.ReadFull(far, p)
		got <- p
	}()
	var want []byte
	for i := range rounds {
		p := bytes.Repeat([]byte{byte(i)}, round)
		want = append(want, p...)
		_, _ = c.Write(p)
		_, _ = other.Write(p[:100])
		other.tryFlush()
		if c.tryFlush() && !c.hasRoom() {
			testutil.NoError(t, c.flush())
		}
	}
	testutil.NoError(t, c.flush())
	testutil.Equal(t, bytes.Equal(<-got, want), true, "the bytes come as they were written")
}

// Behind a flush that has failed, TLS has nothing to say, and does not wait to say it.
func TestNothingIsWrittenBehindAFailedFlush(t *testing.T) {
	c, _ := buffered(t)
	_ = c.SetWriteDeadline(time.Unix(1, 0))
	_, _ = io.WriteString(c, "a record")
	testutil.Fails(t, c.flush(), "a flush after the deadline")
	_ = c.SetWriteDeadline(time.Time{})
	c.passThrough()
	testutil.ErrorIs(t, testutil.Err(io.WriteString(c, "the alert")), net.ErrClosed, "a write behind it")
}
