package hostile

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Frames and fields of docs/link-protocol.md §2.
const (
	frameHello byte = iota
	frameOpen
	frameOpened
	frameData
	frameCredit
	frameReset
	framePing
	frameGoAway
	frameInfo
	frameAck
	frameMove
)

func frame(kind, flags byte, stream uint64, payload []byte) []byte {
	b := []byte{kind, flags}
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	b = binary.BigEndian.AppendUint64(b, stream)
	return append(b, payload...)
}

func put(b []byte, key uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, key)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

func u16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func u32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// babbler is a link that breaks every rule but those whose breach would end it at
// once: it says things of streams that are well formed, and untrue.
type babbler struct {
	conn  net.Conn
	agent bool
	towns []string // destinations

	mu     sync.Mutex
	buf    []byte
	random *rand.Rand
	own    uint64   // the last stream that it opened
	theirs []uint64 // streams that the other side opened
	routes [][]byte
}

// tokens are few, so that connections meet those of others.
const tokens = 64

func (b *babbler) hello(group []byte) {
	role, id := byte(2), "babbler"
	if b.agent {
		role = 1
	}
	fields := put(nil, 1, []byte{role})
	fields = put(fields, 3, []byte(id))
	fields = put(fields, 4, []byte("host=babble.test"))
	fields = put(fields, 7, []byte("resume"))
	fields = put(fields, 7, []byte("lanes"))
	fields = put(fields, 9, group)
	b.buf = append(b.buf, frame(frameHello, 0, 0, fields)...)
}

// listen takes in what the other side says.
func (b *babbler) listen() {
	head := make([]byte, 12)
	payload := make([]byte, 1<<16)
	for {
		if _, err := io.ReadFull(b.conn, head); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(head[2:]))
		if _, err := io.ReadFull(b.conn, payload[:n]); err != nil {
			return
		}
		id := binary.BigEndian.Uint64(head[4:])
		b.mu.Lock()
		switch head[0] {
		case framePing:
			if head[1]&1 == 0 {
				b.buf = append(b.buf, frame(framePing, 1, 0, payload[:n])...)
			}
		case frameOpen:
			b.theirs = append(b.theirs, id)
			if len(b.theirs) > 500 {
				b.theirs = b.theirs[250:]
			}
			b.buf = append(b.buf, frame(frameOpened, 0, id, b.opened())...)
		case frameOpened:
			for p := payload[:n]; len(p) >= 4; {
				key, size := binary.BigEndian.Uint16(p), int(binary.BigEndian.Uint16(p[2:]))
				if len(p) < 4+size {
					break
				}
				if key == 7 && len(b.routes) < 100 {
					b.routes = append(b.routes, append([]byte(nil), p[4:4+size]...))
				}
				p = p[4+size:]
			}
		}
		b.mu.Unlock()
	}
}

func (b *babbler) one(of ...uint64) uint64 { return of[b.random.IntN(len(of))] }

func (b *babbler) token() []byte {
	t := make([]byte, 16)
	t[0] = byte(b.random.IntN(tokens))
	return t
}

func (b *babbler) route() []byte {
	if len(b.routes) > 0 && b.random.IntN(4) > 0 {
		return b.routes[b.random.IntN(len(b.routes))]
	}
	r := make([]byte, b.random.IntN(1024))
	for i := range r {
		r[i] = byte(b.random.Uint32())
	}
	return r
}

func (b *babbler) opened() []byte {
	if b.random.IntN(4) == 0 {
		return put(put(nil, 1, u16(uint16(b.random.IntN(25)))), 3, b.route())
	}
	f := put(nil, 2, u64(b.one(0, 1, 1<<16, 1<<20, 1<<61)))
	if b.random.IntN(2) == 0 {
		f = put(f, 6, u32(uint32(b.one(0, 1, 30000, 1<<32-1))))
		f = put(f, 7, b.route())
		f = put(f, 8, u64(b.one(0, 1, 1000, 1<<63)))
	}
	return f
}

func (b *babbler) open() []byte {
	f := put(nil, 2, []byte(b.towns[b.random.IntN(len(b.towns))]))
	f = put(f, 3, u64(b.one(0, 1, 1<<16, 1<<20, 1<<61)))
	if b.random.IntN(8) == 0 {
		return f
	}
	f = put(f, 6, b.token())
	f = put(f, 7, u32(uint32(b.one(0, 1, 30000, 30000, 1<<32-1))))
	if b.random.IntN(2) == 0 {
		f = put(f, 11, u32(uint32(b.one(0, 1, 2, 3, 1<<32-1))))
	}
	if b.random.IntN(2) == 0 {
		f = put(f, 8, u32(uint32(b.one(0, 1, 2, 3, 10, 100, 1000, 1<<32-1))))
		f = put(f, 9, b.route())
		f = put(f, 10, u64(b.one(0, 0, 1, 100, 1<<63, 1<<64-1)))
		f = put(f, 12, []byte{byte(b.random.IntN(3))})
	}
	return f
}

// stream is one of the last.
func (b *babbler) stream() uint64 {
	if len(b.theirs) > 0 && (b.own == 0 || b.random.IntN(2) == 0) {
		return b.theirs[len(b.theirs)-1-b.random.IntN(min(len(b.theirs), 30))]
	}
	if b.own == 0 {
		return 0
	}
	return b.own - 2*uint64(b.random.IntN(int(min(30, (b.own+1)/2))))
}

// say is one thing.
func (b *babbler) say() []byte {
	id := b.stream()
	if id == 0 || b.random.IntN(6) == 0 {
		if b.own++; b.own%2 == 0 {
			b.own++
		}
		return frame(frameOpen, 0, b.own, b.open())
	}
	switch b.random.IntN(12) {
	case 0, 1, 2:
		return frame(frameAck, byte(b.random.IntN(4)), id, u64(b.one(0, 1, 2, 100, 2000, 1<<62, 1<<64-1)))
	case 3:
		return frame(frameMove, byte(b.random.IntN(2)), id, nil)
	case 4:
		return frame(frameCredit, 0, id, u64(b.one(0, 1, 1<<20, 1<<40, 1<<62)))
	case 5:
		return frame(frameReset, 0, id, u16(uint16(b.random.IntN(12))))
	case 6:
		return frame(frameInfo, 0, 0, put(put(nil, 6, u32(b.random.Uint32())), 8, b.route()))
	case 7:
		return frame(200, byte(b.random.Uint32()), b.random.Uint64(), make([]byte, b.random.IntN(100)))
	default:
		return frame(frameData, byte(b.random.IntN(8)/7), id, make([]byte, b.random.IntN(3000)))
	}
}

// babble does that until ctx ends, by one link after the other.
func babble(ctx context.Context, address string, config *tls.Config, agent bool, seed uint64, towns []string) (links, frames int) {
	random := rand.New(rand.NewPCG(seed, 7))
	group := make([]byte, 16)
	for ctx.Err() == nil {
		conn, err := dialFrom(ctx, attacker, address, config)
		if err != nil {
			pace(ctx, 20*time.Millisecond)
			continue
		}
		links++
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		b := &babbler{conn: conn, agent: agent, towns: towns, random: random}
		group[0] = byte(random.IntN(3))
		b.hello(group)
		var hearing sync.WaitGroup
		hearing.Go(b.listen)
		for life := time.Now().Add(time.Duration(random.IntN(2000)) * time.Millisecond); ctx.Err() == nil && time.Now().Before(life); {
			b.mu.Lock()
			out := b.buf
			for range random.IntN(20) {
				out = append(out, b.say()...)
				frames++
			}
			b.buf = nil
			b.mu.Unlock()
			_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
			if _, err := conn.Write(out); err != nil {
				break
			}
			pace(ctx, time.Duration(random.IntN(3))*time.Millisecond)
		}
		conn.Close()
		hearing.Wait()
		stop()
	}
	return links, frames
}

// TestOddFrames: clients and an agent, each with its certificate, say what is not so of
// connections that outlive their links (docs/link-protocol.md §9) and of lanes (§10).
// Others notice nothing, and the programs hold little.
func TestOddFrames(t *testing.T) {
	if *duration < time.Minute {
		t.Skip("for make hostile: it says much at random, and needs time for that")
	}
	s := newSuite(t)
	srv := must(s.StartServer("--proxy-strategies=destHost"))(t)
	must(s.StartAgent(srv, "--resume-window=3s", "--agent-identifiers=ipv4=127.0.0.1"))(t)
	sidecar := must(s.StartSOCKS5(srv))(t)
	n := neighbourOf(t, s, srv)
	bystander := must(proxied("socks5", sidecar.Address(), n.target))(t)
	defer bystander.Close()
	before := owned(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	towns := []string{
		n.target, testutil.Serve(t, func(c *net.TCPConn) { forever(c, make([]byte, 4096)) }), testutil.Silent(t, "127.0.0.1", 0).Addr().String(),
		"127.0.0.1:1", "babble.test:80", "nobody.invalid:1", "[::1]:x",
	}
	asAgent := clientTLS(t, s, link.ALPN)
	asAgent.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(s.PKI("agent.crt"), s.PKI("agent.key")))(t)}
	for i := range 8 {
		agent, port, config := i < 2, srv.ClientPort, clientTLS(t, s, link.ALPN)
		if agent {
			port, config = srv.AgentPort, asAgent
		}
		work.Go(func() {
			links, frames := babble(ctx, suite.Loopback(port), config, agent, uint64(i), towns)
			t.Logf("an agent: %v; %d links, %d frames", agent, links, frames)
		})
	}
	work.Go(func() { n.visit(ctx, "babble.test:80") })
	for end := time.Now().Add(*duration * 3 / 4); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := roundTrip(bystander); err != nil {
			t.Errorf("a connection beside them: %v", err)
			break
		}
	}
	cancel()
	work.Wait()
	for i, now := range owned(t, s) {
		p := s.Processes()[i]
		t.Logf("%s: %.1f MiB before, %.1f MiB now", p.Name, mib(before[i]), mib(now))
		testutil.AtMost(t, mib(now-before[i]), mib(maxGrowth), "MiB more that %s holds", p.Name)
	}
	if n.hurt.Load() > 0 || n.failed.Load() > 0 {
		t.Errorf("%d of the neighbour's connections were hurt, %d of its dials failed", n.hurt.Load(), n.failed.Load())
	}
}

// visit dials what answers as it likes, or not at all.
func (n *neighbour) visit(ctx context.Context, address string) {
	for pace(ctx, time.Millisecond) {
		c, err := n.ses.Dial(ctx, tunnel.NewFlow("tcp", address))
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = c.Write(make([]byte, 100))
		_, _ = io.Copy(io.Discard, io.LimitReader(c, 10_000))
		_ = c.Reset(nil)
	}
}
