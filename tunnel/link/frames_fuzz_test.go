package link_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// tee keeps the bytes written to a net.Conn.
type tee struct {
	net.Conn
	mu  sync.Mutex
	buf bytes.Buffer
}

func (c *tee) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.buf.Write(p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *tee) taken() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.buf.Bytes())
}

// conversation is what a real initiator writes while it uses all there is.
func conversation(t testing.TB) []byte {
	near, far := net.Pipe()
	wire := &tee{Conn: near}
	serve := &tunnel.Forwarder{Dialer: &destinations{}}
	lasting := link.Hello{Features: []string{link.FeatureResume}}
	a, b := sessions(t, wire, far, link.Config{Hello: lasting, Handler: granting{serve}}, link.Config{Hello: lasting, Handler: granting{serve}})
	for _, ses := range []*link.Session{a, b} {
		conn := testutil.Must(ses.Dial(context.Background(), tunnel.NewFlow("tcp", "echo:1")))(t)
		_, _ = conn.Write(make([]byte, 100))
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		_, _ = ses.Dial(context.Background(), tunnel.NewFlow("tcp", "refuse:1"))
		conn = testutil.Must(ses.Dial(context.Background(), tunnel.NewFlow("tcp", "echo:1")))(t)
		_ = conn.Reset(nil)
		resumed := tunnel.NewFlow("tcp", "echo:1")
		resumed.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, Route: "12345678agent", Taken: 7}
		conn = testutil.Must(ses.Dial(context.Background(), resumed))(t)
		conn.(*link.Stream).Acknowledge(link.Ack{Offset: 7})
		conn.(*link.Stream).Acknowledge(link.Ack{Offset: 8, End: true})
		_ = conn.Reset(nil)
	}
	a.SetServerCount(4)
	a.Drain()
	_, _ = a.Close(), b.Close()
	said := wire.taken()
	return said[12+int(said[2])<<8+int(said[3]):] // the fuzzed peer says its own HELLO
}

// granting is a Handler whose connections outlive their links.
type granting struct{ next tunnel.Handler }

// Serve implements tunnel.Handler.
func (g granting) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	if f.Resume != nil {
		f.Resume.Granted = tunnel.Grant{Window: time.Minute, Route: "12345678agent", Taken: f.Resume.Taken}
	}
	g.next.Serve(ctx, f, answer, ended)
}

// FuzzFrames sends arbitrary bytes to a session that has a stream and a dial
// of its own under way: it must not panic, hang, or leave anything behind.
func FuzzFrames(f *testing.F) {
	talk := conversation(f)
	f.Add(talk)
	f.Add(talk[:len(talk)/2])
	var all []frame
	for _, b := range []frame{openFrame(1, "echo:1"), openFrame(3, "hang:1"), {tOpened, 0, 2, fields(2, u64(9))}, {tData, 0, 1, []byte("x")},
		{tData, fin, 1, nil}, {tCredit, 0, 1, u64(1 << 20)}, {tReset, 0, 3, u16(2)}, {tAck, 0, 1, u64(1)}, {tAck, 1, 2, u64(2)}, {tPing, 0, 0, u64(1)}, {tPing, ack, 0, u64(1)},
		{tInfo, 0, 0, fields(6, []byte{0, 0, 0, 1})}, {tGoAway, 0, 0, u16(0)}, {99, 0, 0, nil}, {tGoAway, 0, 0, u16(4, "bye")}} {
		f.Add(b.bytes())
		all = append(all, b)
	}
	f.Add(encode(all...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<20 {
			return
		}
		near, far := net.Pipe()
		r := newRig(t, near, far, false, link.Config{
			Hello:   link.Hello{Features: []string{link.FeatureResume}},
			Handler: granting{&tunnel.Forwarder{Dialer: &destinations{}, DialTimeout: time.Second}},
		})
		ctx := testutil.ContextFor(t, 5*time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { // our own dial, for OPENED and the frames behind it
			ours := tunnel.NewFlow("tcp", "raw:1")
			ours.Resume = &tunnel.Resume{Token: [16]byte{2}, Window: time.Minute}
			if conn, err := r.ses.Dial(ctx, ours); err == nil {
				conn.(*link.Stream).Acknowledge(link.Ack{Offset: 1, End: true})
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		})
		wg.Go(func() { _, _ = io.Copy(io.Discard, far) })
		_ = far.SetDeadline(time.Now().Add(patience))
		_, _ = far.Write(b)
		_ = r.ses.Close()
		_ = far.Close()
		wg.Wait()
		testutil.Equal(t, r.ses.Streams(), 0, "streams left")
		testutil.Equal(t, r.budget.Used(), 0, "bytes of the budget still held")
	})
}
