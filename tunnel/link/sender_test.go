package link

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// wire is a net.Conn that keeps the bytes written to it.
type wire struct {
	net.Conn
	gate    chan struct{} // writes wait until it is closed
	broken  error
	hook    func(n int) // called before the n-th write
	writes  int
	writing atomic.Int32
	mixed   atomic.Bool // two have written at once

	mu  sync.Mutex
	buf bytes.Buffer
}

// aWire is one that takes nothing until it is let.
func aWire(open bool) *wire {
	w := &wire{gate: make(chan struct{})}
	if open {
		close(w.gate)
	}
	return w
}

func (w *wire) Write(p []byte) (int, error) {
	if w.writing.Add(1) > 1 {
		w.mixed.Store(true)
	}
	defer w.writing.Add(-1)
	<-w.gate
	if w.writes++; w.hook != nil {
		w.hook(w.writes)
	}
	time.Sleep(time.Microsecond) // others run meanwhile
	if w.broken != nil {
		return 0, w.broken
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *wire) Close() error { return nil }

func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// taken returns the frames written since the last call.
func (w *wire) taken(t *testing.T) []string {
	time.Sleep(time.Second)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.buf.Reset()
	return decode(t, w.buf.Bytes())
}

// errLost is what the streams of a link get whose connection failed.
var errLost = errors.New("the link is lost")

// testSender is a sender without a link, its connection, and the sending halves of streams.
type testSender struct {
	*sender
	conn   *wire
	halves []*sendHalf
}

// withSender calls test with one, in fake time, and ends it.
func withSender(t *testing.T, open bool, streams int, test func(t *testing.T, s testSender)) {
	synctest.Test(t, func(t *testing.T) {
		s := aSender(open, streams)
		defer s.stop()
		test(t, s)
	})
}

// stop ends the sender, unless it has ended, and joins what it has started.
func (s testSender) stop() {
	s.do(func() {
		if s.writer != writerDead {
			s.stopLocked()
		}
	})
	s.wg.Wait()
}

func aSender(open bool, streams int) testSender {
	mu, conn := &sync.Mutex{}, aWire(open)
	halves := make([]*sendHalf, streams)
	for i := range halves {
		halves[i] = &sendHalf{id: uint64(i), cond: sync.Cond{L: mu}, credit: sendCredit{limit: maxCredit}}
	}
	s := &sender{
		frameWriter: newFrameWriter(conn), mu: mu, wg: &sync.WaitGroup{}, sent: func(int) {},
		writer: writerFree, freed: sync.Cond{L: mu}, flushCond: sync.Cond{L: mu},
	}
	s.fail = func(error) {
		for _, h := range halves {
			h.end = errLost
			h.cond.Broadcast()
		}
		if s.writer != writerDead {
			s.stopLocked()
		}
	}
	return testSender{s, conn, halves}
}

// do calls f with the lock held.
func (s *sender) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *sender) sending() (yes bool) {
	s.do(func() { yes = s.writer.writing() })
	return yes
}

// Whoever sends, however much, writes alone, each stream's bytes go in order, and
// nothing is left behind.
func TestSenderSendsAllInOrder(t *testing.T) {
	withSender(t, true, 8, func(t *testing.T, s testSender) {
		counted := 0
		s.sent = func(n int) { counted += n }
		want := make([]bytes.Buffer, len(s.halves))
		var writers sync.WaitGroup
		for i, h := range s.halves {
			writers.Go(func() {
				for n := range 40 {
					p := bytes.Repeat([]byte{byte(n)}, 1<<(n%16)+i)
					want[i].Write(p)
					for len(p) > 0 {
						m, err := s.writeSome(h, p)
						if err != nil {
							t.Error(err)
							return
						}
						p = p[m:]
					}
					s.do(func() { h.out.credit = uint64(n + 1); s.push(h) })
				}
			})
		}
		for range 10 {
			s.pushControl(controlDrain, appendGoAway(nil, GoAwayDrain, ""))
			time.Sleep(50 * time.Microsecond)
		}
		writers.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		testutil.Equal(t, s.conn.mixed.Load(), false, "two wrote at once")
		testutil.Equal(t, s.writer.writing() || s.queue.pending(), false, "something is left")
		got, total, dataFrames := make([]bytes.Buffer, len(s.halves)), 0, uint64(0)
		for b := s.conn.buf.Bytes(); len(b) > 0; {
			h := testutil.Must(parseHeader(b))(t)
			if h.typ == frameData {
				got[h.stream].Write(b[headerSize : headerSize+h.length])
				total, dataFrames = total+h.length, dataFrames+1
			}
			b = b[headerSize+h.length:]
		}
		for i := range want {
			n, of := got[i].Len(), want[i].Len()
			testutil.Holds(t, bytes.Equal(got[i].Bytes(), want[i].Bytes()), "stream %d: %d bytes of %d, not in order", i, n, of)
		}
		testutil.Equal(t, counted, total, "bytes that are counted")
		testutil.Equal(t, s.queue.dataFrames, dataFrames, "frames that are")
	})
}

// What a stream has queued for the present writer goes before what it writes itself, even
// if so many streams have queued frames that one round does not reach them.
func TestSenderSendsTheWritersOwnFramesFirst(t *testing.T) {
	withSender(t, false, 40, func(t *testing.T, s testSender) {
		var writers sync.WaitGroup
		writers.Go(func() { _, _ = s.writeSome(s.halves[0], []byte("first")) })
		synctest.Wait()
		for _, h := range s.halves[1:39] {
			_, _ = s.writeSome(h, make([]byte, smallMessage))
		}
		own := s.halves[39]
		s.do(func() { s.pushIntro(own, frameOpened, []byte{}) })
		_, _ = s.writeSome(own, []byte("small"))
		writers.Go(func() { _, _ = s.writeSome(own, make([]byte, smallMessage+1)) })
		time.Sleep(time.Second)
		close(s.conn.gate)
		writers.Wait()
		want := []string{"DATA/0 first", "OPENED/39", "DATA/39 small"}
		got := s.conn.taken(t)
		testutil.Holds(t, slices.Equal(got[:3], want) && slices.Index(got, "DATA/39") >= 3 && len(got) == 3+38+1,
			"sent %q, want %q first", got, want)
	})
}

// A stream that queues for its turn during the last round of the writer before it gets the
// turn nevertheless.
func TestSenderPassesTheTurnAfterTheLastRound(t *testing.T) {
	withSender(t, true, 3, func(t *testing.T, s testSender) {
		const rounds = 4
		var last sync.WaitGroup
		s.conn.hook = func(n int) {
			switch {
			case n <= rounds:
				_, _ = s.writeSome(s.halves[1], []byte("x"))
			case n == rounds+1:
				last.Go(func() { _, _ = s.writeSome(s.halves[2], make([]byte, 2*smallMessage)) })
				time.Sleep(time.Second) // it queues for its turn
			}
		}
		testutil.Succeeds(t, testutil.Err(s.writeSome(s.halves[0], make([]byte, 2*smallMessage))), "the write")
		last.Wait()
	})
}

// Pending frames are sent without a caller that waits: at once if the turn is free, else by
// the writer.
func TestSenderLeavesNothingBehind(t *testing.T) {
	for name, push := range map[string]func(s *sender, h *sendHalf){
		"CREDIT/1": func(s *sender, h *sendHalf) { s.do(func() { h.out.credit = 1; s.push(h) }) },
		"OPEN/1":   func(s *sender, h *sendHalf) { s.do(func() { s.pushIntro(h, frameOpen, []byte{}) }) },
		"GOAWAY/0": func(s *sender, _ *sendHalf) { s.pushControl(controlDrain, appendGoAway(nil, GoAwayDrain, "")) },
		"PING 7":   func(s *sender, _ *sendHalf) { s.do(func() { s.queue.pushPing(7); s.callFlusherLocked() }) },
	} {
		t.Run(name, func(t *testing.T) {
			withSender(t, true, 2, func(t *testing.T, s testSender) {
				push(s.sender, s.halves[1])
				testutil.EqualSlices(t, s.conn.taken(t), []string{name}, "frames, with nobody sending")
				s.conn.gate = make(chan struct{})
				var writer sync.WaitGroup
				writer.Go(func() { _, _ = s.writeSome(s.halves[0], []byte("long")) })
				for !s.sending() {
					time.Sleep(time.Microsecond)
				}
				push(s.sender, s.halves[1])
				close(s.conn.gate)
				writer.Wait()
				testutil.EqualSlices(t, s.conn.taken(t), []string{"DATA/0 long", name}, "frames, with somebody sending")
				s.stop()
				push(s.sender, s.halves[1])
				testutil.Equal(t, len(s.conn.taken(t)), 0, "frames sent after the end")
			})
		})
	}
}

// Once a write has failed, all streams, the one in its Write too, hear of the loss of the
// link, and no call waits for the flusher.
func TestSenderFails(t *testing.T) {
	withSender(t, false, 5, func(t *testing.T, s testSender) {
		s.conn.broken = errors.New("broken")
		var writers sync.WaitGroup
		for _, h := range s.halves {
			writers.Go(func() {
				testutil.Equal(t, testutil.Err(s.writeSome(h, make([]byte, 2*smallMessage))), errLost, "stream %d", h.id)
			})
		}
		time.Sleep(time.Second)
		close(s.conn.gate)
		writers.Wait()
		s.wg.Wait()
		testutil.Equal(t, s.writer == writerDead && !s.queue.pending() && s.queue.popTurn() == nil, true, "it is over")
	})
}

// A link that has ended is summed up once, so a write that was stuck then
// counts no more.
func TestSenderCountsNothingOnceOver(t *testing.T) {
	withSender(t, false, 1, func(t *testing.T, s testSender) {
		var writer sync.WaitGroup
		writer.Go(func() { _, _ = s.writeSome(s.halves[0], make([]byte, 2*smallMessage)) })
		for !s.sending() {
			time.Sleep(time.Microsecond)
		}
		s.stop()
		close(s.conn.gate)
		writer.Wait()
		testutil.Equal(t, s.queue.dataFrames, 0, "frames that are counted")
	})
}

// GOAWAY is the last frame: behind pending frames, however many rounds they take, and in
// place of the streams in line.
func TestSenderSaysGoodbyeLast(t *testing.T) {
	withSender(t, false, 55, func(t *testing.T, s testSender) {
		var writers sync.WaitGroup
		writers.Go(func() { _, _ = s.writeSome(s.halves[0], []byte("first")) })
		for !s.sending() {
			time.Sleep(time.Microsecond)
		}
		writers.Go(func() { _, _ = s.writeSome(s.halves[1], make([]byte, 2*smallMessage)) })
		time.Sleep(time.Millisecond)
		s.do(func() { s.halves[2].out.reset = true; s.push(s.halves[2]) })
		want := []string{"DATA/0 first", "RESET/2"}
		for i, h := range s.halves[3:] {
			testutil.Succeeds(t, testutil.Err(s.writeSome(h, make([]byte, smallMessage))), "a small message")
			want = append(want, fmt.Sprintf("DATA/%d", i+3))
		}
		want = append(want, "GOAWAY/0")
		writers.Go(func() { s.sayGoodbye(ErrClosed, GoAwayShutdown, "bye") })
		time.Sleep(time.Millisecond)
		close(s.conn.gate)
		time.Sleep(time.Millisecond)
		testutil.EqualSlices(t, s.conn.taken(t), want, "frames")
		s.do(func() { s.fail(nil) })
		writers.Wait()
		s.wg.Wait()
	})
}

// tryWrite takes nothing while the turn is taken, for a stream that may not send as much,
// or without a write buffer.
func TestTryWriteNeverWaits(t *testing.T) {
	withSender(t, true, 1, func(t *testing.T, s testSender) {
		n := s.tryWrite(s.halves[0], tunnel.CopyChunk([]byte("text")))
		testutil.Equal(t, n, 0, "bytes that were taken without a write buffer")
	})
	for name, c := range map[string]struct {
		prepare func(s *sender, h *sendHalf)
		size    int
		want    bool
	}{
		"free":                 {func(*sender, *sendHalf) {}, 4, true},
		"nothing":              {func(*sender, *sendHalf) {}, 0, false},
		"more than a turn":     {func(*sender, *sendHalf) {}, turnBytes + 1, false},
		"taken":                {func(s *sender, _ *sendHalf) { s.stepLocked(takesTurn) }, 4, false},
		"over":                 {func(s *sender, _ *sendHalf) { s.stepLocked(dies) }, 4, false},
		"about to end":         {func(s *sender, _ *sendHalf) { s.stepLocked(closes) }, 4, false},
		"beside a Write":       {func(_ *sender, h *sendHalf) { h.writing = true }, 4, false},
		"of a stream's end":    {func(_ *sender, h *sendHalf) { h.end = net.ErrClosed }, 4, false},
		"more than its credit": {func(_ *sender, h *sendHalf) { h.credit.limit = 3 }, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := aSender(true, 1)
			s.buffer = &writeBuffer{raw: noSocket{}, buffers: true}
			counted := 0
			s.sent = func(n int) { counted += n }
			c.prepare(s.sender, s.halves[0])
			_, ok := s.tryTurn(s.halves[0], c.size)
			testutil.Equal(t, ok, c.want, "it takes it")
			testutil.Holds(t, !c.want || s.writer == writerTaken && counted == c.size,
				"the writer is %v, counted %d bytes", s.writer, counted)
		})
	}
}

// noSocket is a socket that takes nothing.
type noSocket struct{}

func (noSocket) Control(func(uintptr)) error { return nil }

func (noSocket) Read(func(uintptr) bool) error { return nil }

func (noSocket) Write(func(uintptr) bool) error { return nil }

// The flusher lasts while there may be more to send for it.
func TestTheFlusherLeavesAQuietLink(t *testing.T) {
	withSender(t, true, 1, func(t *testing.T, s testSender) {
		for _, busy := range []bool{true, false} {
			s.do(func() { s.halves[0].out.credit = 1; s.push(s.halves[0]); s.flushes = busy })
			testutil.EqualSlices(t, s.conn.taken(t), []string{"CREDIT/0"}, "frames")
			s.do(func() { testutil.Equal(t, s.flusher != flusherGone, busy, "the flusher runs") })
		}
	})
}

// The reader waits for a peer that asks for more and reads no answers, until these are
// sent or the link has ended.
func TestSenderAwaitsItsBacklog(t *testing.T) {
	testutil.Each(t, map[string]func(s *sender){
		"told": func(s *sender) { s.endTurn(0, nil) },
		"over": func(s *sender) { s.do(s.stopLocked) },
	}, func(t *testing.T, end func(s *sender)) {
		withSender(t, true, maxOrphans, func(t *testing.T, s testSender) {
			before, after := false, false
			wait := func() { s.do(func() { s.awaitBacklogUnlocked(func() { before = true }); after = true }) }
			wait()
			testutil.Equal(t, !before && after, true, "it does not wait, as nothing is to be told")
			s.do(func() {
				after = false
				s.stepLocked(takesTurn) // by a writer that the connection holds up
				for _, h := range s.halves {
					h.out.reset = true
					s.push(h)
					s.queue.orphan(h)
				}
			})
			var waiter sync.WaitGroup
			waiter.Go(wait)
			time.Sleep(time.Second)
			s.do(func() {
				testutil.Equal(t, before, true, "what comes before that was done")
				testutil.Equal(t, after, false, "it goes on")
			})
			end(s.sender)
			waiter.Wait()
		})
	})
}
