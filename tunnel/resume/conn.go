package resume

import (
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
	// Watch has w told of acknowledgements and of the carrier's failure, and
	// returns what was acknowledged before.
	Watch(w link.Watcher) (acked link.Ack, some bool)
	// Acknowledge tells the other end what was taken.
	Acknowledge(a link.Ack)
	// Detach ends the carrier but not the connection; nothing more comes out
	// of it then.
	Detach()
	// Stay tells an opener that the connection cannot be moved any more.
	Stay()
	// Session is the link that it is on.
	Session() *link.Session
}

// Conn is an end of a connection that outlives its carriers.
type Conn struct {
	ends    *Manager
	token   [16]byte
	address string   // of the destination
	opening *opening // how it is resumed; nil: the other end does that

	local, remote net.Addr
	dest          [2]net.Addr // the destination's, at the acceptor: local and remote

	mu      sync.Mutex
	changed sync.Cond // room to write, another carrier, the end of it all
	end     End
	st      Carrier // nil: none
	err     error   // why it is over; nil: it is not, or ended in order
	reading int     // how many read from a carrier
	leaving int     // how many carriers were left that something may still come out of
	held    int     // of the budget
	room    *room   // for what is not acknowledged; nil: no writer has wanted more
	used    tunnel.Moment
	epoch   uint32      // of st
	code    tunnel.Code // that the peer is told once an end that was abandoned has a carrier
	sending bool        // somebody gives st what it has not been given
	stuck   bool        // the one who does is a writer of ours, who may have a deadline
	owing   bool        // the Manager will acknowledge
	waiting bool        // the Manager looks at its deadline
	done    bool        // the Manager knows that it is over
	big     bool        // the peer was told by st that there is much

	course atomic.Pointer[tunnel.ResumeStatus] // also for those who only look; nil: nothing was lost yet

	readBy, writeBy *expiry // nil: nobody has set one

	turn turn // to read
}

// Course implements tunnel.Resumable.
func (c *Conn) ResumeStatus() tunnel.ResumeStatus {
	if p := c.course.Load(); p != nil {
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
	if c.inOrder() {
		return nil
	}
	return c.err
}

// inOrder says whether the peer's direction has ended in order: whoever is to take what
// came has all the time then. Of an end that is over, that may yet be in its carrier.
func (c *Conn) inOrder() bool {
	return c.end.In.Finished() || c.end.Reason() != NotGone && c.st != nil && c.st.Failed() == nil
}

// CloseWrite implements tunnel.Conn. It does not wait for the end to be sent.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writable(); err != nil {
		if err == errWriteClosed {
			return nil
		}
		return err
	}
	c.end.Out.Finish()
	c.flush()
	return nil
}

// flush has sent what was not, without waiting for it.
func (c *Conn) flush() {
	if c.st != nil && c.end.Carried() && c.end.Due() {
		c.acknowledge()
	}
	switch {
	case !c.startSending():
		c.settle()
	case c.end.Out.OnlyEnd() || !c.ends.start(c.sendOn):
		c.send()
	}
}

// Close implements net.Conn. What was written is still delivered, by other
// carriers if need be, for as long as the window. What comes is dropped, unless it
// is delivered to a Receiver, which is to take it.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.end.Reason() != NotGone:
		c.release()
		return nil
	case c.end.Closed():
		return nil
	}
	c.end.Close(time.Now())
	c.flush()
	if c.end.Reason() == NotGone && !c.end.In.Finished() {
		c.startDropping()
	}
	return nil
}

// startDropping has what comes dropped.
func (c *Conn) startDropping() {
	c.readBy.stop()
	c.readBy = nil
	switch {
	case c.turn.delivers():
		c.turn.drop()
	case c.st != nil: // whoever reads is let go, before drop does
		_ = c.st.SetReadDeadline(time.Now())
	}
	c.ends.start(c.drop)
}

// CloseFor implements tunnel.Conn. The peer is told no cause: which carrier tells it of
// the end is not known yet.
func (c *Conn) CloseFor(error) error { return c.Close() }

// Reset implements tunnel.Conn.
func (c *Conn) Reset(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.Reason() != NotGone {
		c.release()
		return nil
	}
	code := tunnel.CodeOf(cause)
	if LosesCarrier(code) {
		code = tunnel.CodeGone // or the other end would wait for another carrier
	}
	err := &tunnel.ResetError{Code: tunnel.CodeOf(cause)}
	if c.st == nil && c.opening != nil && c.ends.resumes() { // the next carrier is to tell the peer
		c.code = code
		c.end.Abandon(time.Now())
		c.fail(err)
		c.settle()
		return nil
	}
	if c.st != nil {
		_ = c.st.Reset(&tunnel.ResetError{Code: code})
	}
	c.end.End(Ended)
	c.over(err)
	return nil
}

// settle is called after anything has changed: it sees to deadlines and to the
// end of it all.
func (c *Conn) settle() {
	c.end.Settle(time.Now())
	c.account()
	switch {
	case c.end.Reason() != NotGone:
		c.over(errOver(c.end.Reason()))
	case !c.end.Deadline().IsZero() && !c.waiting:
		c.waiting = true
		c.ends.timely.add(c)
	}
	c.changed.Broadcast()
}

// codeOver is what the peer is told at the end, where it did not bring that about.
func codeOver(r Reason) tunnel.Code {
	if r == Dishonest {
		return tunnel.CodeProtocol
	}
	return tunnel.CodeGone
}

// errOver is what reads and writes return after the end.
func errOver(r Reason) error {
	switch r {
	case Complete:
		return nil
	case Dishonest:
		return &tunnel.ResetError{Code: tunnel.CodeProtocol}
	default:
		return &tunnel.ResetError{Code: tunnel.CodeLost}
	}
}

// over is called once the end is gone.
func (c *Conn) over(err error) {
	if c.done {
		return
	}
	c.done = true
	c.account()
	if !c.ResumeStatus().Lost.IsZero() {
		c.ends.lone.Add(-1)
	}
	c.ends.gone(c)
	switch c.end.Reason() {
	case Complete:
		c.release()
	case Ended, Unresolved:
		if c.end.Closed() { // else what came before it may yet be read
			c.release()
		}
	default:
		if st := c.st; st != nil {
			c.st = nil
			_ = st.Reset(&tunnel.ResetError{Code: codeOver(c.end.Reason())})
		}
	}
	c.fail(err)
}

// fail tells those who use the connection that it is over, and why; nil: it
// ended in order.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.readBy.stop()
	c.writeBy.stop()
	c.changed.Broadcast()
	if err != nil && !c.inOrder() {
		c.turn.fail(err)
	}
}

// release gives the carrier up, with nobody to use it any more. What a plain connection
// was last given is delivered yet; a peer that still waits for what it has sent to be
// taken is told behind that.
func (c *Conn) release() {
	if st := c.st; st != nil {
		c.st = nil
		_ = st.Close()
	}
}

// account has what is kept count in the memory budget.
func (c *Conn) account() {
	if n := c.end.Out.Size() - c.held; n != 0 {
		c.held += n
		c.ends.hold(n)
	}
}

// attach makes st the carrier, which came by f; whoever calls has had the end
// take it.
func (c *Conn) attach(st Carrier, epoch uint32, f *tunnel.Flow) {
	c.st, c.epoch, c.big = st, epoch, false
	c.used = tunnel.Now()
	if before := c.ResumeStatus(); !before.Lost.IsZero() {
		c.ends.resumed(time.Since(before.Lost))
		course := tunnel.ResumeStatus{Resumes: before.Resumes + 1, Hop: f.Hop}
		if f.Source != nil {
			course.Source = f.Source.String()
		}
		c.course.Store(&course)
	}
	if c.turn.delivers() {
		st.In().Deliver(&inlet{c, st, epoch})
		c.ready()
	} else {
		_ = st.SetReadDeadline(c.readBy.time())
	}
	c.watch(st, epoch)
	if c.done { // the peer had all of it
		return
	}
	if c.end.In.Finished() { // every carrier waits for it before it is closed
		c.acknowledge()
	}
	c.flush()
}

// replays counts what the new carrier is given that one before was given too,
// up to sent.
func (c *Conn) replays(sent uint64, err error) {
	if err == nil {
		c.ends.stats.replayed.Add(int64(sent - c.end.Out.Sent()))
	}
}

// watch has c told about st.
func (c *Conn) watch(st Carrier, epoch uint32) {
	if acked, some := st.Watch(watcher{c, st, epoch}); some {
		c.end.Heard(epoch)
		c.acked(acked)
		c.settle() // it may have been a lie
	}
}

// watcher is told about one carrier.
type watcher struct {
	c     *Conn
	st    Carrier
	epoch uint32
}

// Acked implements link.Watcher.
func (w watcher) Acked(a link.Ack) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != w.st {
		return
	}
	c.end.Heard(w.epoch)
	c.acked(a)
	c.settle()
}

// Lost implements link.Watcher.
func (w watcher) Lost(cause error) { w.c.ends.lost(w, cause) }

// Move implements link.Watcher. Only who opened the connection can have it move.
func (w watcher) Move() {
	if w.c.opening != nil {
		w.c.ends.start(func() { w.c.move(w.st.Session(), true) })
	}
}

// errLost is how a carrier ends that is given up here.
var errLost = &tunnel.ResetError{Code: tunnel.CodeLost}

// broken takes in that a carrier has failed. It returns it if it is to be
// detached, which the caller does with the lock released.
func (c *Conn) broken(st Carrier, epoch uint32, cause error) (left Carrier) {
	if c.st != st || c.end.Reason() != NotGone {
		return nil
	}
	c.end.Broken(epoch, tunnel.CodeOf(cause), time.Now())
	switch {
	case c.end.Reason() == Ended:
		c.over(cause)
		return nil
	case c.end.Reason() != NotGone:
		c.settle()
		return nil
	}
	c.leave()
	return st
}

// leave has the end wait for its next carrier. The present one is to be detached by
// the caller, with the lock released.
func (c *Conn) leave() {
	c.st = nil
	c.leaving++
	if course := c.ResumeStatus(); course.Lost.IsZero() {
		course.Lost = time.Now()
		c.course.Store(&course)
		c.ends.left()
		if c.opening == nil {
			c.ends.crowd(c, course.Lost)
		}
	}
	c.settle()
}

// detach ends a carrier that was left.
func (c *Conn) detach(left Carrier) {
	left.Detach()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving--
	c.changed.Broadcast()
}

// calm waits until nobody uses a carrier that was left, for no longer than patience,
// and says whether it came to that: whoever resumes others, too, does not wait for a
// write that is stuck.
func (c *Conn) calm(patience time.Duration) bool {
	if !c.busy() {
		return true
	}
	over := false
	defer time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		over = true
		c.changed.Broadcast()
	}).Stop()
	for c.busy() && !over {
		c.changed.Wait()
	}
	return !c.busy()
}

// busy says whether somebody still uses a carrier that was left, so that what was taken
// out of it and given to it is not known for good.
func (c *Conn) busy() bool {
	return (c.sending || c.reading > 0 || c.leaving > 0) && c.end.Reason() == NotGone
}

var _ interface {
	tunnel.Conn
	tunnel.Source
	tunnel.Sink
} = (*Conn)(nil)
