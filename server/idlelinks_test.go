package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// A link that does nothing takes one goroutine of the server, whose stack has not
// grown by the handshake: 4 KiB, of which TLS needs more than half.
func TestIdleLinksKeepSmallStacks(t *testing.T) {
	r := startServer(t, func(o *Options) { o.Keepalive = time.Hour }) // mute links answer no ping
	const links, most = 200, 6 << 10                                  // stacks come in spans of 32 KiB
	config := r.tls(link.ALPN)
	goroutines, stacks := resting()
	for i := range links {
		at, hello := r.agentAt, link.Hello{Role: link.RoleAgent, ID: fmt.Sprint(i), Features: []string{link.FeatureLanes}}
		if i%2 > 0 {
			at, hello.Role, hello.Group = r.tcp, link.RoleClient, "sixteen bytes it"
		}
		defer mute(t, at, config, hello).Close()
	}
	r.eventually("all are known", func() bool { return len(r.adminPeers()) == links })
	r.eventually("one goroutine for each, and 6 KiB of stack", func() bool { // a timer of each link starts another now and then
		moreGoroutines, moreStacks := resting()
		n, per := moreGoroutines-goroutines, (float64(moreStacks)-float64(stacks))/links
		t.Logf("%d goroutines for %d links, and %.0f bytes of stack for each", n, links, per)
		return n <= links+links/20 && (per <= most || !testutil.ExactMemory)
	})
}

// mute makes a link of which this process runs nothing.
func mute(t *testing.T, at string, config *tls.Config, hello link.Hello) net.Conn {
	t.Helper()
	c := testutil.Must(tls.Dial("tcp", at, config))(t)
	answer := make([]byte, 4<<10)
	testutil.Must(c.Write(encoded(hello)))(t)
	testutil.Must(c.Read(answer))(t)
	return c
}

// encoded is a HELLO, as who dials sends it.
func encoded(hello link.Hello) []byte {
	near, far := net.Pipe()
	go func() { _, _ = link.Connect(context.Background(), near, link.Config{Hello: hello}) }()
	defer far.Close() // and so ends Connect
	frame := make([]byte, 4<<10)
	n, _ := far.Read(frame)
	return frame[:n]
}

// resting is how many goroutines there are, and how much memory their stacks take,
// once those have shrunk that can.
func resting() (goroutines int, stacks uint64) {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.StackInuse
}
