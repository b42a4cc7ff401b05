package legacy

import "time"

// firstData is how long data and an end wait after DIAL_RSP, unless the client
// speaks first. konnectivity-client drops packets of a connection that come before its
// dialing goroutine has run (client.go, serve and dialContext), and
// upstream's server can write them before its "200 Connection Established"
// (pkg/server/tunnel.go). Nothing tells when that was. But a client's process
// may stand still for longer, and then finds both at once: so the time begins with its
// answer to a question, which follows DIAL_RSP, and after a half of it the client is
// asked once more.
const firstData = 100 * time.Millisecond

// questions is how many a client is asked.
const questions = 2

// answerTime is how long a client may take to answer. Versions of
// konnectivity-client before v0.1.1 may not.
const answerTime = 10 * time.Second

// gate keeps back what a connection sends to an old peer first. It is open, or shut until
// something opens it, or shut while the client is asked, from the first thing there is to
// send on. The sender's lock guards all but old.
type gate struct {
	old    bool // was shut to begin with; never changes
	isShut bool
	asks   int         // questions that remain
	timer  *time.Timer // opens it, or asks again; nil: nothing was asked
}

// shut keeps the queue, which is empty, from being sent until open is called. With so many
// questions, if any, it opens by itself once the client has answered them.
func (q *sendQueue) shut(asks int) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.gate = gate{old: true, isShut: true, asks: asks}
	q.s.shut++
}

// open lets the queue be sent.
func (q *sendQueue) open() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.openLocked()
}

func (q *sendQueue) openLocked() {
	if !q.gate.isShut {
		return
	}
	q.gate.isShut = false
	q.s.shut--
	if q.gate.timer != nil {
		q.gate.timer.Stop()
	}
	q.enqueue()
	q.s.work.Signal() // for a sender that ends, also if there is nothing to send
}

// askFirst asks the client for the first time, if that is what the gate waits for.
func (q *sendQueue) askFirst() {
	if q.gate.timer == nil && q.gate.asks > 0 {
		q.ask()
	}
}

// spoken has a client that speaks asked no more: it has taken the answer to its dial.
func (q *sendQueue) spoken() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.gate.asks = 0
}

// ask asks the client. It opens the gate if there is no answer in time.
func (q *sendQueue) ask() {
	q.gate.asks--
	q.s.control = append(q.s.control, controlPacket{Packet: question(q.id)})
	q.s.work.Signal()
	q.gate.timer = time.AfterFunc(answerTime, q.open)
}

// answered is called for the answer to a question. It returns false where nothing was asked.
func (q *sendQueue) answered() bool {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if q.gate.isShut && q.gate.timer != nil {
		q.gate.timer.Stop()
		q.gate.timer = time.AfterFunc(firstData/questions, q.wasQuiet)
	}
	return q.gate.timer != nil
}

// wasQuiet asks again, or opens the gate.
func (q *sendQueue) wasQuiet() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if q.gate.isShut && q.gate.asks > 0 {
		q.ask()
		return
	}
	q.openLocked()
}
