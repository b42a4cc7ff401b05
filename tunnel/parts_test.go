package tunnel_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestUnreadComesFirst(t *testing.T) {
	head := strings.Repeat("h", tunnel.ChunkSize+5) // more than one chunk
	testutil.Each(t, map[string]func(tunnel.Conn) ([]byte, error){
		"Read":       func(c tunnel.Conn) ([]byte, error) { return io.ReadAll(c) },
		"ReadChunks": readAllChunks,
		"both": func(c tunnel.Conn) ([]byte, error) {
			first := make([]byte, 3)
			if _, err := io.ReadFull(c, first); err != nil {
				return nil, err
			}
			rest, err := readAllChunks(c)
			return append(first, rest...), err
		},
	}, func(t *testing.T, read func(tunnel.Conn) ([]byte, error)) {
		client, conn := testutil.Pair(t)
		p := []byte(head)
		got := tunnel.Unread(tunnel.Wrap(conn), p)
		clear(p) // it must have been copied
		_, _ = client.Write([]byte("tail"))
		_ = client.CloseWrite()
		testutil.Equal(t, string(testutil.Must(read(got))(t)), head+"tail", "the head, then the tail")
	})
}

func TestUnreadKeepsSink(t *testing.T) {
	_, conn := testutil.Pair(t)
	wrapped := tunnel.Wrap(conn)
	testutil.Equal(t, tunnel.Unread(wrapped, nil), wrapped, "a Conn that nothing is put back of")
	testutil.Equal(t, tunnel.Unread(wrapped, []byte("x")).Out(), wrapped.Out(), "the Sink behind what was read ahead")
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	piped := tunnel.Unread(tunnel.Wrap(a), []byte("x"))
	got := make([]byte, 4)
	n := testutil.Must(piped.Read(got))(t)
	testutil.Equal(t, string(got[:n]), "x", "what is read")
}

func readAllChunks(c tunnel.Conn) ([]byte, error) {
	var all []byte
	var dst [2]tunnel.Chunk
	for {
		n, err := c.In().ReadChunks(dst[:])
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		for _, chunk := range dst[:n] {
			all = append(all, chunk.Bytes()...)
		}
		tunnel.ReleaseAll(dst[:n])
	}
}

// causes is a Conn that notes why it was closed.
type causes struct {
	tunnel.Conn
	cause error
}

func (c *causes) CloseFor(cause error) error {
	c.cause = cause
	return c.Conn.CloseFor(cause)
}

func (c *causes) Reset(cause error) error {
	c.cause = cause
	return c.Conn.Reset(cause)
}

// A Conn with other parts hands on why it is closed, and counts as closed once.
func TestWithPassesOnItsEnd(t *testing.T) {
	cause := errors.New("void")
	for want, end := range map[error]func(tunnel.Conn) error{
		nil:    tunnel.Conn.Close,
		cause:  func(c tunnel.Conn) error { return c.CloseFor(cause) },
		io.EOF: func(c tunnel.Conn) error { return c.Reset(io.EOF) },
	} {
		near, far := net.Pipe()
		defer far.Close()
		base, ended := &causes{Conn: tunnel.Wrap(near)}, 0
		c := tunnel.With(base, tunnel.Parts{Ended: func() { ended++ }})
		testutil.NoError(t, end(c))
		if _, err := near.Write([]byte{1}); base.cause != want || ended != 1 || err == nil {
			t.Errorf("it was closed for %v, %d were told, and a write says %v", base.cause, ended, err)
		}
		_ = end(c)
		testutil.Equal(t, ended, 1, "times that it has ended")
	}
}

// Once a Conn is closed, reads fail, even if one of its parts still holds bytes.
func TestWithReadsNothingOnceClosed(t *testing.T) {
	testutil.Each(t, map[string]func(tunnel.Conn) error{
		"Close":    tunnel.Conn.Close,
		"CloseFor": func(c tunnel.Conn) error { return c.CloseFor(io.EOF) },
		"Reset":    func(c tunnel.Conn) error { return c.Reset(io.EOF) },
	}, func(t *testing.T, end func(tunnel.Conn) error) {
		near, far := net.Pipe()
		defer far.Close()
		c := tunnel.Unread(tunnel.Wrap(near), []byte("x"))
		testutil.NoError(t, end(c))
		n, err := c.Read(make([]byte, 1))
		testutil.Equal(t, n, 0, "bytes that are read")
		testutil.ErrorIs(t, err, net.ErrClosed, "what the read says")
	})
}
