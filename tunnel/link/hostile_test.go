package link_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// heap is how much memory is in use after garbage was collected.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// encode is frames as one piece of bytes.
func encode(frames ...frame) []byte {
	var b bytes.Buffer
	for _, f := range frames {
		b.Write(f.bytes())
	}
	return b.Bytes()
}

// A peer that asks for more and more and reads no answer is not read either before
// what waits for it is much, or anything where memory is short. Once it reads, it has
// an answer to each.
func TestUnreadAnswersAreBounded(t *testing.T) {
	const opens, most, few, dials = 8192, 1024, 17, 4096
	for name, c := range map[string]struct {
		address string
		held    int // bytes of the budget, by others
		least   int // answers that wait in the end
		most    int
	}{
		"bad address":     {"nonsense", 0, most, most},
		"no such host":    {"nowhere:1", 0, most, most + dials},
		"memory is short": {"nonsense", 60 << 20, few, few},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := newStuckRig(t)
			r.budget.Hold(c.held)
			var sent atomic.Int64
			var asking sync.WaitGroup
			asking.Go(func() {
				for i := range uint64(opens) {
					if _, err := r.conn.Write(openFrame(2*i+1, c.address).bytes()); err != nil {
						t.Errorf("OPEN %d: %v", i, err)
						return
					}
					sent.Add(1)
				}
			})
			testutil.Eventually(t, "it is not read any more", func() bool {
				before := sent.Load()
				time.Sleep(20 * time.Millisecond)
				return sent.Load() == before && r.ses.Orphans() >= c.least
			})
			n := r.ses.Orphans()
			testutil.Holds(t, n <= c.most && sent.Load() != opens, "%d answers wait to %d OPENs, want at most %d", n, sent.Load(), c.most)
			testutil.AtLeast(t, r.budget.Used()-int64(c.held), int64(c.least-few+1)<<10, "bytes that are held")
			for range opens {
				testutil.Equal(t, r.next().typ, tOpened, "an answer's type")
			}
			asking.Wait()
			r.budget.Hold(-c.held)
			r.end()
		})
	}
}

// A peer that gives up what it asks for leaves nothing behind.
func TestOpenAndResetLeavesNothing(t *testing.T) {
	noLeaks(t)
	r := newStuckRig(t)
	before, grown := heap(), int64(0)
	const opens, batch = 12288, 256
	for sent := 0; sent < opens; sent += batch {
		if sent%(4*batch) == 0 {
			grown = max(grown, heap()-before)
		}
		var frames []frame
		for i := range batch {
			id := uint64(2*(sent+i) + 1)
			frames = append(frames, openFrame(id, "deaf:1"), frame{tReset, 0, id, u16(2)})
		}
		r.send(frames...)
	}
	testutil.AtMost(t, grown, 8<<20, "bytes that it grew by")
	_ = r.conn.Close()
	_ = r.ses.Close()
}

// newStuckRig is a rig over a pipe whose raw peer has stopped reading.
func newStuckRig(t *testing.T) *rig {
	near, far := net.Pipe()
	// A slow machine takes longer than a peer may be silent.
	return newRig(t, near, far, false, link.Config{DeadAfter: time.Hour})
}

func TestFloods(t *testing.T) {
	floods := map[string]func(id uint64) frame{
		"PING":   func(id uint64) frame { return frame{tPing, 0, 0, u64(id)} },
		"PONG":   func(id uint64) frame { return frame{tPing, ack, 0, u64(id)} },
		"RESET":  func(id uint64) frame { return frame{tReset, 0, 1, u16(2)} },
		"MOVE":   func(id uint64) frame { return frame{tMove, byte(id & 1), 3, nil} },
		"ACK":    func(id uint64) frame { return frame{tAck, byte(id & 1), 3, u64(id)} },
		"CREDIT": func(id uint64) frame { return frame{tCredit, 0, 3, u64(id)} },
		"INFO": func(id uint64) frame {
			return frame{tInfo, 0, 0, fields(2, strings.Repeat("x", 1000), 6, []byte{0, 0, 0, 7})}
		},
		"GOAWAY":  func(id uint64) frame { return frame{tGoAway, 0, 0, u16(0, "soon")} },
		"DATA":    func(id uint64) frame { return frame{tData, 0, 3, nil} },
		"unknown": func(id uint64) frame { return frame{99, 1, id, make([]byte, 100)} },
	}
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			near, far := net.Pipe()
			// A slow machine takes longer over a flood than a peer may be silent.
			r := newRig(t, near, far, false, link.Config{DeadAfter: time.Hour})
			defer r.end()
			r.open(1, "echo:1")
			r.open(3, "deaf:1")
			before := heap()
			batches := 50
			if testing.Short() {
				batches /= 5
			}
			// First without reading, then read on: the link must still work.
			for i := range batches {
				var frames []frame
				for j := range 1000 {
					frames = append(frames, flood(uint64(i*1000+j)))
				}
				r.sendBytes(encode(frames...))
			}
			testutil.AtMost(t, heap()-before, 8<<20, "bytes that it grew by with %d,000 frames", batches)
			r.pings = 1 << 40
			r.send(frame{tPing, 0, 0, u64(r.pings)})
			for pongs := 0; ; { // the flood's own answers first
				f := r.next()
				if f.typ == tPing && bytes.Equal(f.payload, u64(r.pings)) {
					break
				}
				if pongs++; pongs > 2 {
					t.Fatalf("%d answers were queued", pongs)
				}
			}
			r.echo(101)
		})
	}
}

// 4,096 dials may be under way, no more, and cancelled ones make room.
func TestDialsOfAPeerAreBounded(t *testing.T) {
	r := tcpRig(t, false, link.Config{Hello: link.Hello{Features: []string{link.FeatureResume}}})
	const dials = 4096
	var frames []frame
	for i := range dials {
		frames = append(frames, openFrame(uint64(2*i+1), "hang:1"))
	}
	r.sendBytes(encode(frames...))
	r.wantNothing()
	r.send(openFrame(2*dials+1, "echo:1"))
	r.wantOpened(2*dials+1, 12)
	resuming := openFrame(2*dials+3, "refuse:1") // of a connection that exists: these have room of their own
	resuming.payload = append(resuming.payload, fields(6, make([]byte, 16), 8, []byte{0, 0, 0, 1})...)
	r.send(resuming)
	r.wantOpened(2*dials+3, 2)
	r.send(frame{tReset, 0, 1, u16(2)})
	id := uint64(2*dials + 5)
	testutil.Eventually(t, "room after a cancelled dial", func() bool {
		return r.dests.hanging.Load() == dials-1
	})
	testutil.Eventually(t, "an accepted OPEN", func() bool {
		r.send(openFrame(id, "echo:1"))
		f := r.wantType(tOpened, id)
		id += 2
		_, refused := fieldOf(f.payload, 1)
		return !refused
	})
}

// A Handler that gives no answer is one that failed.
func TestHandlerWithoutAnAnswer(t *testing.T) {
	r := tcpRig(t, false, link.Config{Handler: mute{}})
	r.send(openFrame(1, "x:1"))
	r.wantOpened(1, 1)
}

type mute struct{}

func (mute) Serve(_ context.Context, _ *tunnel.Flow, _ tunnel.Answer, ended func(error)) { ended(nil) }

// hasty is a gate at which the farewell's deadline has passed as it is set, so
// that the stuck write fails before Close is through.
type hasty struct{ *gate }

func (h hasty) SetWriteDeadline(time.Time) error {
	defer time.Sleep(10 * time.Millisecond) // in which the session hears of it
	return h.gate.Close()
}

// Several readers of one stream: what one leaves, and the end, reach the rest.
func TestNoReaderSleepsBesideData(t *testing.T) {
	r := tcpRig(t, true, link.Config{})
	id, conn := r.dialed()
	const readers = 8
	var wg sync.WaitGroup
	var total atomic.Int64
	for range readers {
		wg.Go(func() {
			for {
				n, err := conn.Read(make([]byte, 1))
				if total.Add(int64(n)); err != nil {
					return
				}
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	r.send(frame{tData, fin, id, make([]byte, 5*readers)})
	promptly(t, "a reader of a stream that has ended", wg.Wait)
	testutil.Equal(t, total.Load(), 5*readers, "bytes read")
}

// openFor opens a stream for a client with a number, and returns its credit.
func (r *rig) openFor(client, id uint64, address string) (credit uint64) {
	r.t.Helper()
	f := openFrame(id, address)
	f.payload = append(f.payload, fields(5, u64(client))...)
	r.send(f)
	value, _ := fieldOf(r.wantType(tOpened, id).payload, 2)
	return binary.BigEndian.Uint64(value)
}
