package link

import (
	"fmt"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// frameNames are what the table below calls frames.
var frameNames = map[frameType]string{
	frameOpen: "OPEN", frameOpened: "OPENED", frameData: "DATA", frameCredit: "CREDIT",
	frameReset: "RESET", framePing: "PING", frameGoAway: "GOAWAY", frameInfo: "INFO",
}

// decode lists the frames in b as "type/stream", with what PINGs and DATA carry.
func decode(t *testing.T, b []byte) (frames []string) {
	t.Helper()
	for len(b) > 0 {
		h := testutil.Must(parseHeader(b))(t)
		payload := b[headerSize : headerSize+h.length]
		b = b[headerSize+h.length:]
		name := fmt.Sprintf("%s/%d", frameNames[h.typ], h.stream)
		switch {
		case h.typ == framePing:
			name = fmt.Sprintf("PING %d", payload[7])
			if h.flags&flagPingAck != 0 {
				name = fmt.Sprintf("PONG %d", payload[7])
			}
		case h.typ == frameData && h.flags&flagDataFin != 0:
			name += fmt.Sprintf(" %s FIN", payload)
		case h.typ == frameData && len(payload) < 100:
			name += fmt.Sprintf(" %s", payload)
		}
		frames = append(frames, name)
	}
	return frames
}

// message leaves a small message.
func message(q *sendQueue, h *sendHalf, text string) bool {
	return q.pushMessage(h, len(text), []tunnel.Chunk{tunnel.CopyChunk([]byte(text))})
}

func TestSendQueueDecidesWhatGoesNext(t *testing.T) {
	for name, c := range map[string]struct {
		fill func(q *sendQueue, h []*sendHalf) (own *sendHalf)
		want []string
	}{
		"nothing": {func(*sendQueue, []*sendHalf) *sendHalf { return nil }, nil},
		"the link's frames before those of streams, and an answer before a question": {
			func(q *sendQueue, h []*sendHalf) *sendHalf {
				message(q, h[1], "a")
				q.pushPing(7)
				q.pushPong(8)
				q.pushControl(controlDrain, appendGoAway(nil, GoAwayDrain, ""))
				return nil
			},
			[]string{"GOAWAY/0", "PONG 8", "PING 7", "DATA/1 a"},
		},
		"the newest PING only": {
			func(q *sendQueue, _ []*sendHalf) *sendHalf {
				q.pushPong(1)
				q.pushPong(2)
				q.pushPing(3)
				q.pushPing(4)
				return nil
			},
			[]string{"PONG 2", "PING 4"},
		},
		"streams in order of arrival, each once": {
			func(q *sendQueue, h []*sendHalf) *sendHalf {
				message(q, h[3], "c")
				message(q, h[1], "a")
				message(q, h[3], "d")
				message(q, h[2], "b")
				return nil
			},
			[]string{"DATA/3 cd", "DATA/1 a", "DATA/2 b"},
		},
		"a stream's frames in the order of its life": {
			func(q *sendQueue, h []*sendHalf) *sendHalf {
				o := &h[1].out
				o.reset, o.fin, o.credit = true, true, 5
				message(q, h[1], "a")
				o.introType, o.intro = frameOpened, []byte{}
				return nil
			},
			[]string{"OPENED/1", "CREDIT/1", "DATA/1 a FIN", "RESET/1"},
		},
		"what the writer itself left comes before the others', and once": {
			func(q *sendQueue, h []*sendHalf) *sendHalf {
				message(q, h[1], "a")
				message(q, h[2], "b")
				message(q, h[3], "c")
				return h[3]
			},
			[]string{"DATA/3 c", "DATA/1 a", "DATA/2 b"},
		},
		"a reset without what it overtakes": {
			func(q *sendQueue, h []*sendHalf) *sendHalf {
				message(q, h[1], "a")
				h[1].out.fin, h[1].out.credit = true, 9
				q.discard(h[1])
				h[1].out.reset = true
				return nil
			},
			[]string{"RESET/1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, halves := &sendQueue{}, make([]*sendHalf, 4)
			for i := range halves {
				halves[i] = &sendHalf{id: uint64(i)}
			}
			testutil.EqualSlices(t, decode(t, q.pop(nil, c.fill(q, halves))), c.want, "frames")
			rest := decode(t, q.pop(nil, nil))
			testutil.Holds(t, rest == nil && !q.pending() && q.copied == 0, "%q, %d bytes are left", rest, q.copied)
		})
	}
}

// A round takes the frames that fit the scratch buffer, and the next goes on behind them.
// With bulk in between, no stream is passed over.
func TestSendQueueGoesInRounds(t *testing.T) {
	q := &sendQueue{}
	const crowd = 60
	for id := range uint64(crowd) {
		there := message(q, &sendHalf{id: id}, string(make([]byte, smallMessage)))
		testutil.Equal(t, there, true, "stream %d finds room", id)
	}
	var got []string
	rounds := 0
	for q.pending() {
		b := q.pop(nil, nil)
		testutil.AtMost(t, len(b), scratchSize, "bytes of a round")
		got = append(got, decode(t, b)...)
		rounds++
	}
	testutil.Equal(t, len(got), crowd, "frames")
	testutil.Equal(t, q.dataFrames, crowd, "frames counted")
	testutil.AtLeast(t, rounds, 4, "rounds")
	for i, name := range got {
		testutil.Equal(t, name, fmt.Sprintf("DATA/%d", i), "frame %d", i)
	}
}

// A queue that is empty keeps its room for the next streams, unless that is much, however many
// rounds it took.
func TestSendQueueKeepsLittleRoom(t *testing.T) {
	for crowd, want := range map[int]int{keptPlaces: keptPlaces, keptPlaces + 1: 0} {
		q := &sendQueue{small: make([]*sendHalf, 0, crowd)}
		for id := range crowd {
			q.push(&sendHalf{id: uint64(id), out: outbox{reset: true}})
		}
		for full := make([]byte, scratchSize-maxPayload-1); q.pending(); {
			q.pop(full, nil) // one
		}
		testutil.Equal(t, cap(q.small), want, "places that are kept of %d", crowd)
	}
}

func TestSendQueueTurns(t *testing.T) {
	q := &sendQueue{}
	var halves []*sendHalf
	for i, sent := range []uint64{youngBytes, 0, 2 * youngBytes, youngBytes - 1, youngBytes, 7} {
		h := &sendHalf{id: uint64(i), credit: sendCredit{sent: sent}}
		halves = append(halves, h)
		q.pushTurn(h)
	}
	q.dropTurn(halves[2])
	q.dropTurn(halves[5])
	q.dropTurn(halves[5]) // that waits no more
	var got []uint64
	for h := q.popTurn(); h != nil; h = q.popTurn() {
		got = append(got, h.id)
	}
	testutil.EqualSlices(t, got, []uint64{1, 3, 0, 4}, "turns, those of new streams first")
}

// Whatever is left waits in bounded room.
func TestSendQueueIsBounded(t *testing.T) {
	q := &sendQueue{}
	one := &sendHalf{id: 1}
	testutil.Equal(t, message(q, one, string(make([]byte, smallMessage+1))), false, "a large message is taken")
	for range maxPendingData / smallMessage {
		testutil.Equal(t, message(q, one, string(make([]byte, smallMessage))), true, "a small message is taken")
	}
	testutil.Equal(t, message(q, one, "x"), false, "more is taken of a stream")
	for id := uint64(2); q.copied+smallMessage <= maxCopied; id++ {
		testutil.Requires(t, message(q, &sendHalf{id: id}, string(make([]byte, smallMessage))),
			"there was room")
	}
	testutil.Equal(t, message(q, &sendHalf{id: 1 << 20}, "x"), false, "more is taken of all streams")
	for i := range 100 {
		q.pushControl(controlServing, []byte{byte(i)})
	}
	testutil.EqualSlices(t, q.control[controlServing], []byte{99}, "what waits, which is the newest alone")
	q.clear()
	testutil.Equal(t, q.pending(), false, "something is left")
	testutil.Equal(t, q.copied, 0, "bytes that are left")
}

// What is left counts in the budget, but for a little, and once that is short the
// rest waits elsewhere. All of it is given back, however it goes.
func TestCopiedMessagesCountInTheBudget(t *testing.T) {
	budget := NewBudget(1 << 20)
	testutil.Each(t, map[string]func(q *sendQueue, all []*sendHalf){
		"it is sent": func(q *sendQueue, _ []*sendHalf) {
			for q.pending() {
				q.pop(nil, nil)
			}
		},
		"its streams are reset": func(q *sendQueue, all []*sendHalf) {
			for _, h := range all {
				q.discard(h)
			}
		},
		"the link ends, and its streams after it": func(q *sendQueue, all []*sendHalf) {
			q.clear()
			for _, h := range all {
				q.discard(h)
			}
		},
	}, func(t *testing.T, end func(q *sendQueue, all []*sendHalf)) {
		q := &sendQueue{budget: budget.Share()}
		var all []*sendHalf
		fill := func() {
			for {
				h := &sendHalf{id: uint64(len(all))}
				if !message(q, h, string(make([]byte, smallMessage))) {
					return
				}
				all = append(all, h)
			}
		}
		fill()
		testutil.Equal(t, q.copied, maxCopied, "bytes left")
		testutil.Equal(t, budget.Used(), maxCopied, "bytes counted")
		end(q, all)
		testutil.Equal(t, budget.Used(), 0, "bytes that are counted in the end")
		const rest = 1 << 17
		q.budget.Hold(1<<20 - rest)
		defer q.budget.Give(1<<20 - rest)
		q.copied, all = 0, nil // a new link
		fill()
		testutil.Equal(t, q.copied, copiedUnit, "bytes that are left where memory is short")
		q.clear()
	})
}

// Frames of closed streams count in the budget, but for a few, until they are sent or dropped.
func TestOrphansCountInTheBudget(t *testing.T) {
	for name, end := range map[string]func(*sendQueue){
		"sent": func(q *sendQueue) {
			for q.pending() {
				q.pop(nil, nil)
			}
		},
		"dropped": (*sendQueue).clear,
	} {
		budget := NewBudget(1 << 20)
		q := &sendQueue{budget: budget.Share()}
		for id := range uint64(fewOrphans + 5) {
			h := &sendHalf{id: id}
			h.out.reset = true
			q.push(h)
			q.orphan(h)
		}
		testutil.Equal(t, budget.Used(), 5*orphanMemory, "bytes counted before they are %s", name)
		end(q)
		testutil.Equal(t, budget.Used(), 0, "bytes counted when they are %s", name)
		testutil.Equal(t, q.orphans, 0, "closed streams with frames when they are %s", name)
	}
}
