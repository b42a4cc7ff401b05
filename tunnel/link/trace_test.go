package link_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// What a process between two links writes is recorded: testdata/traces.txt has a hash for each
// seed, of every frame that went out after each of some hundred operations, in fake time. They
// were recorded with the sources of f0f0603, which defined the wire, and differ only where the
// wire does.
//
// -traces DIR writes the frames themselves, to be compared with those of other sources
// by diff; -record replaces the hashes.
var (
	tracesDir    = flag.String("traces", "", "write traces to this folder")
	recordTraces = flag.Bool("record", false, "replace the recorded hashes")
)

const (
	tracesFile = "testdata/traces.txt"
	traceSeeds = 60
	traceSteps = 120
)

// tracer plays random operations on a world and notes the frames that come out.
type tracer struct {
	*rand.Rand
	peers []*tracePeer
	out   strings.Builder
	step  int
}

// tracePeer is the far side of a session. It notes what the session writes, and knows
// enough of it to be a partner: which streams there are.
type tracePeer struct {
	name    string
	conn    net.Conn
	mu      sync.Mutex
	came    []frame
	next    uint64            // id of the next stream that it opens
	sent    map[uint64]uint64 // payload bytes, by stream
	pending []uint64          // streams that the session has opened, unanswered so far
	live    []uint64          // established streams, as far as the peer knows
	all     []uint64
	ended   map[uint64]bool // by FIN from here
	over    bool
}

// receive notes frames until the connection ends.
func (p *tracePeer) receive() {
	raw := &rawPeer{conn: p.conn}
	for {
		f, err := raw.read()
		p.mu.Lock()
		if err != nil {
			p.over = true
			p.mu.Unlock()
			return
		}
		p.came = append(p.came, f)
		p.mu.Unlock()
	}
}

func (p *tracePeer) send(frames ...frame) {
	_ = p.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = p.conn.Write(encode(frames...))
}

// learn takes in a frame of the session.
func (p *tracePeer) learn(f frame) {
	switch f.typ {
	case tOpen:
		p.pending = append(p.pending, f.id)
		p.all = append(p.all, f.id)
	case tOpened:
		if _, failed := fieldOf(f.payload, 1); !failed {
			p.live = append(p.live, f.id)
		}
	case tReset:
		p.gone(f.id)
	}
}

// gone forgets a stream.
func (p *tracePeer) gone(id uint64) {
	is := func(other uint64) bool { return other == id }
	p.live, p.pending = slices.DeleteFunc(p.live, is), slices.DeleteFunc(p.pending, is)
}

// note writes down an operation and its frames. Frames of one stream keep their
// order; streams do not depend on each other.
func (tr *tracer) note(op string) {
	synctest.Wait()
	tr.step++
	fmt.Fprintf(&tr.out, "%d %s\n", tr.step, op)
	for _, p := range tr.peers {
		p.mu.Lock()
		slices.SortStableFunc(p.came, func(a, b frame) int { return int(int64(a.id) - int64(b.id)) })
		for _, f := range p.came {
			payload := fmt.Sprintf("%x", f.payload)
			if f.typ == tData {
				payload = fmt.Sprintf("%d bytes, %x", len(f.payload), sha256.Sum256(f.payload))
			}
			fmt.Fprintf(&tr.out, "\t%s %d/%d %d %s\n", p.name, f.typ, f.flags, f.id, payload)
			p.learn(f)
		}
		p.came = nil
		if p.over {
			fmt.Fprintf(&tr.out, "\t%s ended\n", p.name)
		}
		p.mu.Unlock()
	}
}

// some returns a stream that is in use, or seldom any other.
func (tr *tracer) some(p *tracePeer) uint64 {
	of := p.live
	if len(of) == 0 || tr.IntN(40) == 0 {
		of = p.all
	}
	return of[tr.IntN(len(of))]
}

var traceSizes = []int{0, 1, 100, 4096, 5000, 16372, 16372, 16372}

// tracePatterns are the bytes that peers send, so that hashes tell what arrives.
func tracePattern(id, offset uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(id*31 + (offset+uint64(i))*7)
	}
	return b
}

// peerStep has a peer send something: mostly what a partner would.
func (tr *tracer) peerStep(p *tracePeer) string {
	first := 0
	if p.name == "agent" {
		first = 12
	}
	switch op := first + tr.IntN(100-first); {
	case len(p.all) == 0 || op < 12:
		return tr.peerOpens(p)
	case op < 40 && len(p.pending) > 0:
		return tr.peerAnswers(p)
	case op < 55:
		return tr.peerWrites(p)
	case op < 59:
		id := tr.some(p)
		if p.ended[id] && tr.IntN(10) > 0 {
			return "nothing"
		}
		p.ended[id] = true
		p.send(frame{tData, fin, id, nil})
		return fmt.Sprintf("FIN %d", id)
	case op < 73:
		id, a := tr.some(p), uint64(tr.IntN(100000))
		flags := byte(tr.IntN(4))
		p.send(frame{tAck, flags, id, u64(a)})
		return fmt.Sprintf("ACK %d of %d with %d", id, a, flags)
	case op < 83:
		id, limit := tr.some(p), firstWindow+uint64(tr.IntN(1<<20))
		p.send(frame{tCredit, 0, id, u64(limit)})
		return fmt.Sprintf("CREDIT %d to %d", id, limit)
	case op < 86:
		id, code := tr.some(p), uint16(tr.IntN(12))
		p.send(frame{tReset, 0, id, u16(code)})
		p.gone(id)
		return fmt.Sprintf("RESET %d for %d", id, code)
	case op < 91:
		id, flags := tr.some(p), byte(tr.IntN(2))
		p.send(frame{tMove, flags, id, nil})
		return fmt.Sprintf("MOVE %d with %d", id, flags)
	case op < 94:
		p.send(frame{tPing, 0, 0, u64(uint64(tr.step))})
		return "PING"
	case op < 97:
		p.send(frame{tInfo, 0, 0, fields(6, []byte{0, 0, 0, byte(op)}, 8, "why")})
		return "INFO"
	case op < 98:
		p.send(frame{tGoAway, 0, 0, u16(0, "later")})
		return "drain"
	default:
		p.send(frame{77, 1, uint64(op), []byte("from later")})
		return "unknown"
	}
}

func (tr *tracer) peerOpens(p *tracePeer) string {
	id := p.next
	p.next += 2
	p.all = append(p.all, id)
	payload := fields(2, fmt.Sprintf("x:%d", 1+tr.IntN(9)), 3, u64(firstWindow), 4, fmt.Sprint("id-", id))
	kind := tr.IntN(4)
	if kind > 0 {
		payload = append(payload, fields(6, bytes.Repeat([]byte{byte(id)}, 16), 7, []byte{0, 0, 0xea, 0x60})...)
	}
	switch kind {
	case 2:
		payload = append(payload, fields(11, []byte{0, 0, 0, 3}, 5, u64(7))...)
	case 3:
		payload = append(payload, fields(8, []byte{0, 0, 0, 2}, 9, "route", 12, []byte{1}, 10, u64(77))...)
	}
	p.send(frame{tOpen, 0, id, payload})
	return fmt.Sprintf("OPEN %d of kind %d", id, kind)
}

func (tr *tracer) peerAnswers(p *tracePeer) string {
	id := p.pending[0]
	p.pending = p.pending[1:]
	kind := tr.IntN(8)
	if kind > 0 {
		p.live = append(p.live, id)
	}
	switch kind {
	case 0:
		p.send(frame{tOpened, 0, id, fields(1, u16(uint16(1+tr.IntN(20))), 3, "because")})
		return fmt.Sprintf("OPENED %d, failed", id)
	case 1:
		p.send(frame{tOpened, 0, id, fields(2, u64(firstWindow), 4, "l:1", 5, "r:2")})
		return fmt.Sprintf("OPENED %d, plain", id)
	default:
		p.send(frame{tOpened, 0, id, fields(2, u64(firstWindow), 4, "l:1", 5, "r:2", 6, []byte{0, 0, 0x75, 0x30}, 7, "route", 8, u64(5))})
		return fmt.Sprintf("OPENED %d, to last", id)
	}
}

func (tr *tracer) peerWrites(p *tracePeer) string {
	id, n := tr.some(p), traceSizes[tr.IntN(len(traceSizes))]
	if p.ended[id] && tr.IntN(10) > 0 {
		return "nothing"
	}
	frames := 1 + tr.IntN(3)
	for range frames {
		p.send(frame{tData, 0, id, tracePattern(id, p.sent[id], n)})
		p.sent[id] += uint64(n)
		synctest.Wait() // or two might go on as one
	}
	return fmt.Sprintf("%d times %d bytes on %d", frames, n, id)
}

// sleep has fake time pass: mostly little, at times more than acknowledgements are
// waited for.
func (tr *tracer) sleep() string {
	d := []time.Duration{time.Millisecond, 20 * time.Millisecond, 600 * time.Millisecond, 5 * time.Second, 11 * time.Second}[tr.IntN(5)]
	time.Sleep(d)
	return "sleep " + d.String()
}

// raw connects a session to a tracePeer, which has said HELLO with the features.
func (tr *tracer) raw(t *testing.T, name string, cfg link.Config) *link.Session {
	near, far := net.Pipe()
	cfg.Hello = link.Hello{Role: link.RoleServer, Software: "traced/1", ID: "id", Features: []string{link.FeatureResume, link.FeatureLanes}}
	cfg.DeadAfter = time.Hour
	p := &tracePeer{name: name, conn: far, next: 1, sent: map[uint64]uint64{}, ended: map[uint64]bool{}}
	tr.peers = append(tr.peers, p)
	go func() {
		p.send(frame{tHello, 0, 0, fields(1, []byte{1}, 2, "raw/1", 3, name, 7, link.FeatureResume, 7, link.FeatureLanes)})
	}()
	go p.receive()
	return testutil.Must(link.Accept(t.Context(), link.Buffered(near), cfg))(t)
}

// play is a process between two peers: what one opens goes to the other.
func (tr *tracer) play(t *testing.T) {
	budget := link.NewBudget(4 << 20)
	agent := tr.raw(t, "agent", link.Config{Budget: budget})
	client := tr.raw(t, "client", link.Config{Budget: budget, Handler: joinedTo(agent)})
	tr.note("begin")
	for range traceSteps {
		switch op := tr.IntN(20); {
		case op == 0:
			tr.note(tr.sleep())
		case op == 1:
			bulk, small := agent.Bulk(1)
			slices.SortFunc(bulk, func(a, b *link.Stream) int {
				return strings.Compare(fmt.Sprint(a.RemoteAddr()), fmt.Sprint(b.RemoteAddr()))
			})
			asked := 0
			for _, st := range bulk {
				if st.AskMove() {
					asked++
				}
			}
			tr.note(fmt.Sprintf("%d bulk, %d small, %d asked to move", len(bulk), small, asked))
		default:
			p := tr.peers[tr.IntN(2)]
			if p.name == "agent" && len(p.all) == 0 {
				p = tr.peers[1] // an agent opens no streams
			}
			tr.note(p.name + " " + tr.peerStep(p))
		}
	}
	how := tr.IntN(4)
	switch how {
	case 0:
		_ = tr.peers[0].conn.Close()
	case 1:
		_ = tr.peers[1].conn.Close()
	case 2:
		_ = agent.Close()
	case 3:
		_ = client.CloseWith(link.GoAwayDuplicate, "text")
	}
	tr.note(fmt.Sprint("the end by ", how))
	time.Sleep(11 * time.Minute)
	tr.note("later")
	_, _ = agent.Close(), client.Close()
	tr.note("the end")
	for _, p := range tr.peers {
		_ = p.conn.Close()
	}
	testutil.Equal(t, budget.Used(), 0, "bytes of the budget that are held")
}

func TestTraces(t *testing.T) {
	recorded, err := os.ReadFile(tracesFile)
	testutil.Requires(t, err == nil || *recordTraces, "%v", err)
	want := map[string]string{}
	for line := range strings.Lines(string(recorded)) {
		name, sum, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = sum
	}
	var all strings.Builder
	for seed := range traceSeeds {
		name := fmt.Sprint("middle/", seed)
		t.Run(name, func(t *testing.T) {
			var text string
			synctest.Test(t, func(t *testing.T) {
				tr := &tracer{Rand: rand.New(rand.NewPCG(uint64(seed), 5))}
				tr.play(t)
				text = tr.out.String()
			})
			sum := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]
			fmt.Fprintln(&all, name, sum)
			if *tracesDir != "" {
				file := *tracesDir + "/" + strings.ReplaceAll(name, "/", "-")
				testutil.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			}
			testutil.Holds(t, *recordTraces || want[name] == sum, "the frames are others than those recorded: %s, want %s", sum, want[name])
		})
	}
	if *recordTraces {
		testutil.NoError(t, os.WriteFile(tracesFile, []byte(all.String()), 0o600))
	}
}
