package resume

import (
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Carrier is a stream that carries a connection until it is lost; a
// *link.Stream.
type Carrier interface {
	tunnel.Conn
	// Watch tells w of acknowledgements and of the carrier's failure, and
	// returns the newest acknowledgement that came before; nil: none did.
	Watch(w link.Watcher) (acked *link.Ack)
	// Acknowledge sends a to the other end.
	Acknowledge(a link.Ack)
	// Detach ends the carrier but not the connection; nothing more comes out
	// of it then.
	Detach()
	// Stay tells an opener that the connection cannot be moved any more.
	Stay()
	// Forget has a carrier that was closed wait for no acknowledgements.
	Forget()
	// Session is the link that it is on.
	Session() *link.Session
}

// Conn is an end of a connection that outlives its carriers. While it is attached, it has
// no goroutine.
type Conn struct {
	// Immutable once the connection can be found.

	manager       *Manager
	token         [16]byte
	address       string   // of the destination
	opening       *opening // how it is resumed; nil: the other end does that
	local, remote net.Addr
	dest          [2]net.Addr // the destination's, at the acceptor: local and remote
	served        *served     // the acceptor's relay; nil at an opener

	// Guarded by mu.

	mu              sync.Mutex
	changed         sync.Cond // after Wake, and when a deadline passes
	m               Machine
	st              Carrier // the stream: while m is Up, or until a Conn that is over was read; nil: none
	used            tunnel.Moment
	held            int32     // bytes of the budget, for what it keeps
	lingers         bool      // lingerMemory of the budget is held
	writing         bool      // a Write is under way; others wait for it
	given           bool      // since the last write, a carrier has taken all that there was
	lossNoted       bool      // the log tells that the carrier was lost. Manager.mu guards it; it is here for the size of Conn
	readBy, writeBy *deadline // nil: none is set

	status   atomic.Pointer[tunnel.ResumeStatus] // nil: no carrier was lost yet
	read     readToken
	detached *list.Element // in Manager.detached; nil: not there. Manager.mu guards it
}

// ResumeStatus implements tunnel.Resumable.
func (c *Conn) ResumeStatus() tunnel.ResumeStatus {
	if p := c.status.Load(); p != nil {
		return *p
	}
	return tunnel.ResumeStatus{}
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// In implements tunnel.Conn: a Conn is both sides of itself.
func (c *Conn) In() tunnel.Source { return c }

// Out implements tunnel.Conn.
func (c *Conn) Out() tunnel.Sink { return c }

// Failed implements tunnel.Conn. A carrier that was lost is no failure.
func (c *Conn) Failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readInOrder() {
		return nil
	}
	return c.m.Err()
}

// readInOrder reports whether the peer's direction has ended in order: the application may
// take its time to read the rest. After the connection's end, the rest may be in the
// carrier.
func (c *Conn) readInOrder() bool {
	return c.m.In.Finished() || c.m.Over() && c.st != nil && c.st.Failed() == nil
}

// step settles the actions of an event, and carries them out. The caller holds the lock,
// which Send releases while the carrier takes bytes.
func (c *Conn) step(a Actions) { c.do(c.settle(a)) }

// settle leaves the actions to the caller.
func (c *Conn) settle(a Actions) Actions {
	now := time.Now()
	if a&Used != 0 {
		c.used = tunnel.At(now)
	}
	a = c.m.Settle(a, now)
	if n := c.m.Out.Size() - int(c.held); n != 0 {
		c.held += int32(n)
		c.manager.hold(c.budget(), n)
	}
	if lingers := c.m.State() == StateLingering; lingers != c.lingers {
		c.lingers = lingers
		holdLingering(c.budget(), lingers)
	}
	return a
}

// do carries out actions. Send comes last, since it releases the lock.
func (c *Conn) do(a Actions) {
	if a&Ack != 0 {
		c.acknowledge()
	}
	if a&AckSoon != 0 {
		c.manager.acks.add(c)
	}
	if a&WatchDeadline != 0 {
		c.manager.deadlines.add(c)
	}
	if a&Detach != 0 {
		c.leave()
	}
	if a&Dial != 0 && c.opening != nil {
		c.redialInTime()
	}
	if a&Finish != 0 {
		c.finish()
	}
	if a&Fail != 0 {
		c.fail()
	}
	if a&Wake != 0 {
		c.changed.Broadcast()
	}
	if a&Send != 0 && (c.m.Out.OnlyEnd() || !c.manager.start(c.sendOn)) {
		c.send()
	}
}

// acknowledge sends the peer the newest acknowledgement.
func (c *Conn) acknowledge() {
	if c.st != nil {
		offset, end, big := c.m.Acknowledgement(c.budget().Filling())
		c.st.Acknowledge(link.Ack{Offset: offset, End: end, Big: big})
	}
}

// CloseWrite implements tunnel.Conn. It does not wait for the end to be sent.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch err := c.writable(); err {
	case nil, errDeadline: // a deadline bounds waits, and this is none
	case errWriteClosed:
		return nil
	default:
		return err
	}
	c.step(c.m.Written(true))
	return nil
}

// Close implements net.Conn. Written bytes are still delivered, by other carriers if need
// be, for as long as the window. Bytes that arrive are dropped.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.m.Over():
		c.releaseCarrier()
		return nil
	case c.m.Closed(), c.m.Moving():
		return nil
	}
	c.step(c.m.Close())
	if !c.m.Over() && !c.m.In.Finished() {
		c.startDropping()
	}
	return nil
}

// startDropping starts drop, and has readers return.
func (c *Conn) startDropping() {
	c.readBy.stop()
	c.readBy = nil
	switch {
	case c.read.delivers():
		c.read.revoke()
	case c.st != nil: // a reader returns before drop begins
		_ = c.st.SetReadDeadline(time.Now())
	}
	c.manager.start(c.drop)
}

// CloseFor implements tunnel.Conn. The peer is told no cause: which carrier tells it of
// the end is not known yet.
func (c *Conn) CloseFor(error) error { return c.Close() }

// Reset implements tunnel.Conn. An opener without a carrier tells the peer by the next.
func (c *Conn) Reset(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.Over() {
		c.releaseCarrier()
		return nil
	}
	a := c.settle(c.m.Reset(cause, c.opening != nil && c.manager.open(), time.Now()))
	if c.m.Over() && c.st != nil {
		_ = c.st.Reset(&tunnel.ResetError{Code: c.m.ResetCode()})
	}
	if c.m.Over() && c.opening == nil {
		c.manager.ended.add(c)
	}
	c.do(a)
	return nil
}

// finish forgets the connection.
func (c *Conn) finish() {
	c.manager.remove(c)
	switch c.m.Life() {
	case Complete:
		c.releaseCarrier()
	case Ended, Discarded:
		if c.m.Closed() { // else the application may read the rest
			c.releaseCarrier()
		}
	default:
		if st := c.st; st != nil {
			c.st = nil
			_ = st.Reset(&tunnel.ResetError{Code: c.m.ResetCode()})
		}
	}
}

// fail tells the application that the connection is over.
func (c *Conn) fail() {
	c.readBy.stop()
	c.writeBy.stop()
	if err := c.m.Err(); err != nil && !c.readInOrder() {
		c.read.fail(err)
	}
}

// releaseCarrier closes the carrier of a connection that is over. The last bytes of a plain
// connection are still delivered; a peer whose bytes were not taken reads a reset behind
// them.
func (c *Conn) releaseCarrier() {
	if st := c.st; st != nil {
		c.st = nil
		_ = st.Close()
		if c.m.Plain() { // the peer may never acknowledge the rest, and memory is short
			st.Forget()
		}
	}
}

// attach makes st the carrier, which came by f. Its caller then carries out the actions of
// CarrierUp.
func (c *Conn) attach(st Carrier, f *tunnel.Flow) {
	c.st = st
	c.used = tunnel.Now()
	if before := c.ResumeStatus(); !before.Lost.IsZero() {
		moved := f.Resume != nil && f.Resume.Bulk
		if moved {
			before.Loss = tunnel.LossReplaced // which only the opener knew
		}
		c.manager.resumed(c, before, moved)
		now := tunnel.ResumeStatus{Resumes: before.Resumes + 1, Loss: before.Loss, Hop: f.Hop}
		if f.Source != nil {
			now.Source = f.Source.String()
		}
		c.status.Store(&now)
	}
	if c.read.delivers() {
		st.In().Deliver(&inlet{c, st, c.m.Epoch()})
		c.ready()
	} else {
		_ = st.SetReadDeadline(c.readBy.time())
	}
	c.watch(st)
}

// resumeBy settles Offered or CarrierUp, and counts the bytes that are sent again.
func (c *Conn) resumeBy(event func(uint32, uint64, time.Time) Actions, epoch uint32, offset uint64) Actions {
	sent := c.m.Out.Sent()
	a := c.settle(event(epoch, offset, time.Now()))
	if a&(Attach|Answer) != 0 {
		c.manager.figures.replayed.Add(int64(sent - c.m.Out.Sent()))
	}
	return a
}

// watch passes acknowledgements and the loss of st to the machine.
func (c *Conn) watch(st Carrier) {
	w := watcher{c, st, c.m.Epoch()}
	if acked := st.Watch(w); acked != nil {
		w.acked(*acked)
	}
}

// watcher hears of one carrier.
type watcher struct {
	c     *Conn
	st    Carrier
	epoch uint32
}

// Acked implements link.Watcher.
func (w watcher) Acked(a link.Ack) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.acked(a)
}

func (w watcher) acked(a link.Ack) {
	w.c.step(w.c.m.Acked(w.epoch, a.Offset, a.Big, w.c.budget().Filling()))
}

// Lost implements link.Watcher. It is called with locks of the link held.
func (w watcher) Lost(cause error) { w.c.manager.tasks.run(func() { w.lost(cause) }) }

func (w watcher) lost(cause error) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.c.step(w.c.m.CarrierLost(w.epoch, cause, time.Now()))
}

// Move implements link.Watcher. Only the end that opened the connection can move it.
func (w watcher) Move() {
	if w.c.opening != nil {
		w.c.manager.tasks.run(func() { w.c.move(w.st.Session(), true) })
	}
}

// leave detaches the carrier, and counts the loss.
func (c *Conn) leave() {
	st := c.st
	c.st = nil
	status := c.ResumeStatus()
	status.Lost, status.Loss = time.Now(), c.m.Loss()
	c.status.Store(&status)
	c.manager.lost(c)
	c.manager.tasks.run(func() {
		st.Detach()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.step(c.m.CarrierDetached())
	})
}

var _ interface {
	tunnel.Conn
	tunnel.Source
	tunnel.Sink
} = (*Conn)(nil)
