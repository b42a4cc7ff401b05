package limits

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/net/http2"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/shares"
)

// sent is what an HTTP/2 client sends, with DATA of so many bytes in all.
func sent(t *testing.T, data ...int) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	must := func(err error) {
		testutil.NoError(t, err)
	}
	must(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16}))
	for i, n := range data {
		id := uint32(2*i + 1)
		must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: make([]byte, 100), EndHeaders: true}))
		must(f.WriteData(id, false, make([]byte, n)))
		must(f.WriteWindowUpdate(id, 1000))
		must(f.WritePing(false, [8]byte{}))
	}
	return b.Bytes()
}

// However what a client sends is cut, the payload of its DATA frames is found.
func TestFrameWalk(t *testing.T) {
	all := sent(t, 1, 0, 16384, 9, 5000)
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var w frameWalk
		got := 0
		for rest := all; len(rest) > 0; {
			n := min(len(rest), rnd.IntN(1+rnd.IntN(3000)))
			if rnd.IntN(2) == 0 {
				n = min(n, 3)
			}
			got += w.payload(rest[:n])
			rest = rest[n:]
		}
		testutil.Requires(t, got == 1+16384+9+5000, "seed %d: %d bytes", seed, got)
	}
}

// reading is a connection from which all is read at once.
type reading struct {
	net.Conn
	io.Reader
	closed bool
}

func (r *reading) Read(p []byte) (int, error) { return r.Reader.Read(p) }

func (r *reading) Close() error { r.closed = true; return nil }

// A client that completes nothing has no more than its share of the memory, and
// gives all of it back.
func TestIncompleteMessagesAreBounded(t *testing.T) {
	const most = 1 << 20
	all := shares.NewBudget(most)
	frames := make([]int, 100)
	for i := range frames {
		frames[i] = 16384
	}
	conn := &reading{Reader: bytes.NewReader(sent(t, frames...))}
	g := NewFrames(conn, all.Share())
	end := g.Begin()
	_, err := io.Copy(io.Discard, struct{ io.Reader }{g})
	testutil.Holds(t, errors.Is(err, errIncomplete) && conn.closed, "it goes on: %v", err)
	testutil.Between(t, all.Used(), most/2, most, "bytes were taken of %d", most)
	before := all.Used()
	g.Received(10000)
	testutil.Equal(t, before-all.Used(), 10000+messagePrefix, "bytes given back for a message")
	testutil.Equal(t, int(all.Used()), g.held, "bytes held, and those counted")
	end()
	testutil.Equal(t, all.Used(), 0, "bytes are held by a connection without streams")
	g.Received(5) // late
	testutil.Equal(t, all.Used(), 0, "bytes are held after a late message")
	g.hold(1000)
	g.Finish()
	g.hold(1000) // late
	testutil.Equal(t, all.Used(), 0, "bytes are held by a connection that has ended")
}
