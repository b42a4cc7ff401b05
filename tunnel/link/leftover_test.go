package link_test

import (
	"io"
	"net"
	"testing"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A link that is quiet keeps neither what its handshake took nor what its streams did.
// It fails where a new version of Go has these buffers elsewhere.
func TestAQuietLinkDropsWhatTLSReadInto(t *testing.T) {
	for what, carries := range map[string]bool{"after the handshake": false, "after bulk": true} {
		t.Run(what, func(t *testing.T) {
			near, far := tlsPair(t)
			before := link.Leftover(far)
			if len(before) != 2 || before[0] < link.MinLeftover || before[1] < link.MinLeftover {
				t.Fatalf("a handshake leaves %v bytes, want two buffers of %d or more", before, link.MinLeftover)
			}
			cfg := link.Config{PingInterval: 5 * time.Millisecond, DeadAfter: patience}
			serves := cfg
			serves.Forwarder = &tunnel.Forwarder{Dialer: &destinations{}}
			a, b := sessions(t, near, far, cfg, serves)
			if carries {
				carry(t, a)
			}
			for end := time.Now().Add(patience); a.Streams()+b.Streams() > 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			awaitPings(t, a, 3)
			awaitPings(t, b, 3)
			_, _ = a.Close(), b.Close()
			for _, conn := range []net.Conn{near, far} {
				for _, n := range link.Leftover(conn) {
					if n >= link.MinLeftover {
						t.Errorf("a buffer of %d bytes is left", n)
					}
				}
			}
		})
	}
}

// carry sends some records to and fro.
func carry(t *testing.T, by *link.Session) {
	t.Helper()
	c, err := by.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := make([]byte, 64<<10)
	go func() { _, _ = c.Write(sent) }()
	if _, err := io.ReadFull(c, sent); err != nil {
		t.Fatal(err)
	}
}

// awaitPings waits until the peer has sent frames n times.
func awaitPings(t *testing.T, ses *link.Session, n int) {
	t.Helper()
	for last, end := ses.Heard(), time.Now().Add(patience); n > 0; time.Sleep(time.Millisecond) {
		if heard := ses.Heard(); heard != last {
			last, n = heard, n-1
		}
		if time.Now().After(end) {
			t.Fatal("no pings come")
		}
	}
}
