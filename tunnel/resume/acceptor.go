package resume

import (
	"context"
	"errors"
	"net"
	"time"

	"konnectivity/tunnel"
)

// Forwarder makes the connections that next serves outlive the links they came
// by, where their openers want that.
func (e *Manager) Forwarder(next tunnel.Carrier) tunnel.Carrier {
	if !e.Enabled() {
		return next
	}
	return &forwarder{e, next}
}

type forwarder struct {
	ends *Manager
	next tunnel.Carrier
}

// Forward implements tunnel.Carrier. It returns once the dial was answered,
// where the connection goes on by itself.
func (f *forwarder) Forward(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer) error {
	switch r := flow.Resume; {
	case r.Again():
		return f.ends.accept(flow, answer)
	case r == nil || r.Window <= 0 || f.ends.budget.Scarce() && !f.ends.known(r.Token):
		flow.Resume = nil
		return f.next.Forward(ctx, flow, answer)
	default:
		return f.ends.begin(ctx, f.next, flow, answer)
	}
}

// begin serves a new connection on a goroutine that does not end with the link.
func (e *Manager) begin(ctx context.Context, next tunnel.Carrier, flow *tunnel.Flow, answer tunnel.Answer) error {
	flow.Leave = nil // who serves it waits here
	life, cancel := context.WithCancelCause(e.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	token, answered := flow.Resume.Token, make(chan struct{})
	at := &trial{number: flow.Resume.Attempt, cancel: cancel, answered: answered}
	if again, err := e.enter(ctx, token, at); again || err != nil {
		stop()
		cancel(nil)
		if err != nil {
			_, _ = answer(nil, err)
			return err
		}
		return e.accept(flow, answer)
	}
	started := e.start(func() {
		defer e.leave(token, at)
		defer cancel(nil)
		_ = next.Forward(life, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
			defer e.leave(token, at)
			if err == nil && !stop() {
				err = context.Cause(ctx)
				_, _ = answer(nil, err)
				return nil, err
			}
			return e.answer(flow, at, far, err, answer)
		})
	})
	if !started {
		stop()
		cancel(nil)
		e.leave(token, at)
		return errClosed
	}
	<-answered
	return nil
}

// trial is a dial for an opener, which may ask for it again by another carrier
// before the answer has come.
type trial struct {
	number uint32
	cancel context.CancelCauseFunc

	// Guarded by Manager.mu.

	givenUp  bool          // for a newer one: nothing may come of it
	answered chan struct{} // closed when the outcome is known and was told; then nil
}

// errRepeated is why a dial is given up that was asked for again.
var errRepeated = &tunnel.DialError{Failure: tunnel.FailStale}

// enter notes that a dial is under way. An older attempt at the same is given up
// first, so that the destination has no two connections of it; done says that one
// has come of that already. Where its opener is still being told, that is waited for:
// the connection has no carrier before, and nothing comes of it if that is lost.
func (e *Manager) enter(ctx context.Context, token [16]byte, at *trial) (done bool, err error) {
	for {
		e.mu.Lock()
		before, made := e.dials[token], e.tokens[token] != nil
		if before == nil {
			if !made {
				e.dials[token] = at
			}
			e.mu.Unlock()
			return made, nil
		}
		older, answered := before.number < at.number, before.answered
		before.givenUp = before.givenUp || older
		e.mu.Unlock()
		if !older {
			return false, errRepeated
		}
		if !made {
			before.cancel(errRepeated)
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return false, tunnel.AsDialError("", context.Cause(ctx))
		}
	}
}

// leave notes, once, that a dial is over, and has become a connection or not.
func (e *Manager) leave(token [16]byte, at *trial) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at.answered != nil {
		delete(e.dials, token)
		close(at.answered)
		at.answered = nil
	}
}

// errClosed is why a process that goes begins nothing.
var errClosed = &tunnel.ResetError{Code: tunnel.CodeGone}

// answer tells the opener, and makes its stream a connection.
func (e *Manager) answer(flow *tunnel.Flow, at *trial, far tunnel.Conn, err error, answer tunnel.Answer) (tunnel.Conn, error) {
	if err != nil {
		return answer(nil, err)
	}
	r := flow.Resume
	window := min(r.Window, e.opt.Window, MaxWindow)
	c := e.newConn(nil, window, r.Attempt, r.Token, flow.Address)
	c.dest = [2]net.Addr{far.LocalAddr(), far.RemoteAddr()}
	switch err := e.add(c, at); {
	case err == errRepeated:
		_, _ = answer(nil, err)
		return nil, err
	case err != nil:
		flow.Resume = nil
		return answer(far, nil)
	}
	r.Granted = tunnel.Grant{Window: e.opt.Window}
	c.mu.Lock() // the opener may resume as soon as it was told
	defer c.mu.Unlock()
	near, err := answer(far, nil)
	st, ok := near.(Carrier)
	if err != nil || !ok {
		c.end.End(Ended)
		c.over(errOver(Ended))
		return near, err
	}
	c.local, c.remote, c.st = near.LocalAddr(), near.RemoteAddr(), st
	c.watch(st, c.epoch)
	flow.Resumable, flow.Resume = c, nil // which was about this carrier
	return c, nil
}

// accept has a connection go on by another carrier.
func (e *Manager) accept(flow *tunnel.Flow, answer tunnel.Answer) error {
	r := flow.Resume
	c := e.find(r.Token)
	if c == nil || c.address != flow.Address {
		_, err := answer(nil, &tunnel.DialError{Failure: tunnel.FailGone})
		return err
	}
	number := max(r.Epoch, r.Attempt)
	taken, err := c.accept(number, r.Taken)
	if err != nil {
		failure := tunnel.FailGone
		if errors.Is(err, ErrStale) {
			failure = tunnel.FailStale
		}
		_, err := answer(nil, &tunnel.DialError{Failure: failure})
		return err
	}
	r.Granted = tunnel.Grant{Window: e.opt.Window, Taken: taken}
	near, err := answer(tunnel.With(c, tunnel.Parts{Local: c.dest[0], Remote: c.dest[1]}), nil) // the opener is told of these
	st, ok := near.(Carrier)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.end.Reason() == Complete: // the opener may still write, which is not to be resumed
		if ok && err == nil {
			_ = st.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
		}
	case c.end.Reason() != NotGone || c.end.Epoch() != number || c.st != nil:
		if ok && err == nil {
			st.Detach()
		}
	case err != nil || !ok:
		c.end.Broken(number, tunnel.CodeLost, time.Now())
		c.settle()
	default:
		c.attach(st, number, flow)
	}
	return nil
}

// accept prepares c for the carrier with that number: nothing comes out of the
// one before any more.
func (c *Conn) accept(epoch uint32, peerTaken uint64) (taken uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.end.Reason() == NotGone && epoch > c.end.Epoch() && (c.st != nil || c.busy()) {
		if c.st == nil { // somebody still uses the one before
			c.changed.Wait()
			continue
		}
		st := c.st
		c.leave()
		c.mu.Unlock()
		c.detach(st)
		c.mu.Lock()
	}
	sent := c.end.Out.Sent()
	taken, err = c.end.Accept(epoch, peerTaken, time.Now())
	c.replays(sent, err)
	c.settle()
	return taken, err
}
