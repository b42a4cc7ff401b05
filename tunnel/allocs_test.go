package tunnel_test

import (
	"io"
	"net"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestChunksAllocateNothing(t *testing.T) {
	payload := make([]byte, 1000)
	for name, f := range map[string]func(){
		"new":  func() { tunnel.NewChunk(tunnel.ChunkSize).Release() },
		"copy": func() { tunnel.CopyChunk(payload).Release() },
		"share": func() {
			c := tunnel.NewChunk(2000)
			s := c.Share(0, 1000, 0)
			c.Slice(1000, 2000).Release()
			s.Release()
		},
		"borrow": func() { tunnel.BorrowChunk(payload, nobody{}).Release() },
	} {
		t.Run(name, func(t *testing.T) { testutil.MaxAllocs(t, 0, f) })
	}
}

type nobody struct{}

func (nobody) Free() {}

// What passes a relay allocates nothing: not for large chunks nor small
// messages, and with everything that counts bytes switched on.
func TestRelayAllocatesNothing(t *testing.T) {
	for name, size := range map[string]int{"bulk": 64 << 10, "message": 64} {
		t.Run(name, func(t *testing.T) {
			relay := &tunnel.Relay{Flow: counted(new(tunnel.Totals)), Bounds: tunnel.Bounds{Idle: time.Hour}}
			client, target, _ := startRelay(t, relay)
			there, back := make([]byte, size), make([]byte, size)
			testutil.MaxAllocs(t, 0, func() {
				exchange(t, client, target, there, back)
				exchange(t, target, client, there, back)
			})
		})
	}
}

// exchange sends what and receives it into got.
func exchange(t testing.TB, from, to net.Conn, what, got []byte) {
	if _, err := from.Write(what); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, got); err != nil {
		t.Fatal(err)
	}
}
