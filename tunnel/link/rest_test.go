package link_test

import (
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A link without streams keeps neither certificates nor what TLS read into nor a stack that
// has run TLS, and goes on as before when something comes. It fails where a new version of Go
// has these elsewhere.
func TestALinkRests(t *testing.T) {
	for what, carries := range map[string]bool{"after the handshake": false, "after bulk": true} {
		t.Run(what, func(t *testing.T) {
			near, far := tlsPair(t)
			before := link.TLSBuffers(far.(*tls.Conn))
			testutil.Equal(t, slices.Contains(before, 0), false, "a buffer of none is left: %v", before)
			cfg := link.Config{PingInterval: 50 * time.Millisecond, DeadAfter: patience}
			serves := cfg
			serves.Handler = &tunnel.Forwarder{Dialer: &destinations{}}
			a, b := sessions(t, near, far, cfg, serves)
			kept := near.(*tls.Conn).ConnectionState().PeerCertificates
			testutil.Equal(t, len(kept), 0, "certificates that TLS keeps")
			for range 2 {
				if carries {
					carry(t, a)
				}
				awaitRest(t)
			}
			awaitPings(t, a, 3)
			awaitPings(t, b, 3)
			_, _ = a.Close(), b.Close()
			for _, conn := range []net.Conn{near, far} {
				for _, n := range link.TLSBuffers(conn.(*tls.Conn)) {
					testutil.AtMost(t, n, 1<<10, "bytes of a buffer") // more than the last goodbye took
				}
			}
		})
	}
}

// A link that rests does not keep the record that was read last.
func TestRestKeepsNoRecord(t *testing.T) {
	near, far := tlsPair(t)
	testutil.Must(near.Write(make([]byte, tunnel.RecordSize/2)))(t)
	testutil.Must(io.ReadFull(far, make([]byte, tunnel.RecordSize/2)))(t)
	testutil.Must(near.Write([]byte("more")))(t)
	testutil.Equal(t, link.Rested(far.(*tls.Conn)), 0, "bytes that are kept")
}

// awaitRest waits until two ends of a link rest.
func awaitRest(t *testing.T) {
	t.Helper()
	buf := make([]byte, 1<<20)
	testutil.Eventually(t, "both ends rest", func() bool {
		stacks := string(buf[:runtime.Stack(buf, true)])
		return strings.Count(stacks, "tunnel.AwaitInput(") == 2 && !strings.Contains(stacks, "tls.(*Conn).Read(")
	})
}

// carry sends some records to and fro.
func carry(t *testing.T, by *link.Session) {
	t.Helper()
	c := testutil.Must(by.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
	defer c.Close()
	sent := make([]byte, 64<<10)
	go func() { _, _ = c.Write(sent) }()
	testutil.Must(io.ReadFull(c, sent))(t)
}

// awaitPings waits until the peer has sent frames n times.
func awaitPings(t *testing.T, ses *link.Session, n int) {
	t.Helper()
	last := ses.Heard()
	testutil.Eventually(t, "pings come", func() bool {
		if heard := ses.Heard(); heard != last {
			last, n = heard, n-1
		}
		return n == 0
	})
}

// Links that rest take the stack that a goroutine begins with, 2 KiB each, and little else of
// the runtime's. Pings are so rare that few links are awake on a processor that is busy. One
// whose stack has grown takes 4 KiB.
func TestALinkRestsOnASmallStack(t *testing.T) {
	if !testutil.ExactMemory {
		t.Skip("the race detector needs more stack")
	}
	const links = 100
	before := testutil.Stacks()
	cfg := link.Config{PingInterval: 2 * time.Second, DeadAfter: patience}
	for range links {
		near, far := tlsPair(t)
		sessions(t, near, far, cfg, cfg)
	}
	each := func() int { return (testutil.Stacks() - before) / (2 * links) }
	testutil.Eventually(t, "links rest on 3.5 KiB each", func() bool { return each() < 7<<9 })
}

// What came in one TLS record with the peer's HELLO is read before the link rests.
func TestFramesBehindHelloAreRead(t *testing.T) {
	near, far := tlsPair(t)
	peer := &rawPeer{t: t, conn: near}
	go peer.send(helloFrame(byte(link.RoleAgent)), frame{tPing, 0, 0, u64(7)})
	ses := testutil.Must(link.Accept(t.Context(), far, link.Config{Hello: link.Hello{Role: link.RoleServer}}))(t)
	defer ses.Close()
	for {
		f := testutil.Must(peer.read())(t)
		if f.typ == tPing && f.flags != 0 {
			break
		}
	}
}

// A ticket that comes behind HELLO is not kept for a dial that would look for the
// certificates which TLS has forgotten.
func TestLateTicketsAreNotKept(t *testing.T) {
	near, far := tlsPair(t)
	sessions(t, near, far, link.Config{}, link.Config{})
	testutil.Equal(t, link.TakesNoTickets(near.(*tls.Conn)), true, "TLS keeps none, or has its Config elsewhere")
}
