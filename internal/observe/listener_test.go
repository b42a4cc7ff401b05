package observe

import (
	"bytes"
	"net"
	"testing"

	"konnectivity/internal/testutil"
)

// What net/http makes of headers that never end counts, so that few of them fit.
func TestIncompleteHeadersAreWeighed(t *testing.T) {
	header := bytes.Repeat([]byte("X1234:\r\n"), maxHeaderBytes/8)
	slots := newSlots()
	for range 100 {
		client, server := net.Pipe()
		c := &conn{Conn: server, slots: slots}
		ok, _ := slots.Take(c, server.RemoteAddr())
		testutil.Requires(t, ok, "a newcomer is refused")
		defer c.Close()
		go func() { _, _ = client.Write(header) }()
		for buf, n := make([]byte, 4<<10), 0; n < len(header); {
			m := testutil.Must(c.Read(buf))(t)
			n += m
		}
	}
	const most = maxBytes / (15 * maxHeaderBytes) // which is what each takes
	if _, held := slots.Held(); held > maxBytes || slots.Count() > most {
		t.Errorf("%d connections have %d bytes, want %d and %d at most", slots.Count(), held, most, maxBytes)
	}
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/security.md"
	testutil.Says(t, page, "a port for health, metrics or status allows %v MiB, of which answers that are not taken are a part, %v connections", maxBytes>>20, maxConns)
	testutil.Says(t, page, "with pauses in between of three times as long, %v ms at most", maxRest.Milliseconds())
}
