package tunnel_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"konnectivity/tunnel"
)

func TestUnreadComesFirst(t *testing.T) {
	head := strings.Repeat("h", tunnel.ChunkSize+5) // more than one chunk
	for name, read := range map[string]func(tunnel.Conn) ([]byte, error){
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
	} {
		t.Run(name, func(t *testing.T) {
			client, conn := tcpPair(t)
			p := []byte(head)
			got := tunnel.Unread(tunnel.Wrap(conn), p)
			clear(p) // it must have been copied
			_, _ = client.Write([]byte("tail"))
			_ = client.CloseWrite()
			if b, err := read(got); err != nil || string(b) != head+"tail" {
				t.Fatalf("read %d bytes, %v; want the head, then the tail", len(b), err)
			}
		})
	}
}

func TestUnreadKeepsWhatTheConnCan(t *testing.T) {
	_, conn := tcpPair(t)
	wrapped := tunnel.Wrap(conn)
	if tunnel.Unread(wrapped, nil) != wrapped {
		t.Error("nothing to put back, yet a wrapper")
	}
	if over := tunnel.Unread(wrapped, []byte("x")); over.Out() != wrapped.Out() {
		t.Error("what was read ahead changes how the socket is written to")
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	piped := tunnel.Unread(tunnel.Wrap(a), []byte("x"))
	got := make([]byte, 4)
	if n, err := piped.Read(got); err != nil || !bytes.Equal(got[:n], []byte("x")) {
		t.Errorf("read %q, %v", got[:n], err)
	}
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
