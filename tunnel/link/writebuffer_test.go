package link

import (
	"bytes"
	"errors"
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
	for name, flush := range map[string]func(*writeBuffer) bool{
		"flush":    func(c *writeBuffer) bool { return c.flush() == nil },
		"tryFlush": func(c *writeBuffer) bool { return !c.tryFlush() },
	} {
		t.Run(name, func(t *testing.T) {
			c, far := buffered(t)
			for _, text := range []string{"one", "two"} {
				_, _ = io.WriteString(c, text)
				if c.block == nil || string(c.buf) != text {
					t.Fatalf("holds %q", c.buf)
				}
				if !flush(c) {
					t.Fatal("the kernel takes three bytes")
				}
				if c.block != nil || c.buf != nil {
					t.Error("an empty one holds a block")
				}
				got := make([]byte, len(text))
				if _, err := io.ReadFull(far, got); err != nil || string(got) != text {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
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
	if !bytes.Equal(<-got, want) {
		t.Error("the bytes changed on the way")
	}
}

// Behind a flush that has failed, TLS has nothing to say, and does not wait to say it.
func TestNothingIsWrittenBehindAFailedFlush(t *testing.T) {
	c, _ := buffered(t)
	_ = c.SetWriteDeadline(time.Unix(1, 0))
	_, _ = io.WriteString(c, "a record")
	if c.flush() == nil {
		t.Fatal("the deadline has passed")
	}
	_ = c.SetWriteDeadline(time.Time{})
	c.passThrough()
	if _, err := io.WriteString(c, "the alert"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("what goes behind it: %v", err)
	}
}
