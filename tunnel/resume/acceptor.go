package resume

import (
	"context"
	"net"
	"time"

	"konnectivity/tunnel"
)

// Handler returns a Handler that makes the connections that next serves outlive their links,
// if their openers ask for it. A connection that outlives its link is served on a goroutine of
// the Manager; for the link, it has ended once its dial was answered.
func (m *Manager) Handler(next tunnel.Handler) tunnel.Handler {
	if !m.Enabled() {
		return next
	}
	return tunnel.HandlerFunc(func(ctx context.Context, flow *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
		switch r := flow.Resume; {
		case r.Again():
			ended(m.resume(flow, answer))
		case r == nil || r.Window <= 0 || m.budgetOf(flow.Origin).Scarce() && !m.known(r.Token):
			flow.Resume = nil
			next.Serve(ctx, flow, answer, ended)
		default:
			ended(m.begin(ctx, next, flow, answer))
		}
	})
}

// begin serves a new connection on a goroutine that does not end with the link.
func (m *Manager) begin(ctx context.Context, next tunnel.Handler, flow *tunnel.Flow, answer tunnel.Answer) error {
	life, cancel := context.WithCancelCause(m.ctx)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	token, answered := flow.Resume.Token, make(chan struct{})
	at := &dial{number: flow.Resume.Attempt, cancel: cancel, answered: answered}
	if made, err := m.registerDial(ctx, token, at); made || err != nil {
		stop()
		cancel(nil)
		if err != nil {
			_, _ = answer(nil, err)
			return err
		}
		return m.resume(flow, answer)
	}
	started := m.start(func() {
		m.wg.Add(1) // until the end
		next.Serve(life, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
			defer m.unregister(token, at)
			if err == nil && !stop() {
				err = context.Cause(ctx)
				_, _ = answer(nil, err)
				return nil, err
			}
			return m.answer(flow, at, far, err, answer)
		}, func(error) {
			if at.conn != nil {
				at.conn.relayEnded()
			}
			cancel(nil)
			m.unregister(token, at)
			m.wg.Done()
		})
	})
	if !started {
		stop()
		cancel(nil)
		m.unregister(token, at)
		_, _ = answer(nil, errLeaving)
		return errLeaving
	}
	<-answered
	return nil
}

// dial is one for an opener, which may ask for it again by another carrier before the
// answer has come.
type dial struct {
	number uint32 // of the attempt
	cancel context.CancelCauseFunc
	conn   *Conn // that came of it; nil: none. Only the goroutine that dials uses it

	// Guarded by Manager.mu.

	givenUp  bool          // for a newer attempt: no connection may come of it
	answered chan struct{} // closed when the opener has the answer; then nil
}

// errRepeated is what a dial fails with that was asked for again.
var errRepeated = &tunnel.DialError{Failure: tunnel.FailStale}

// registerDial registers at as the dial for token. It gives up an older attempt first, so
// that the destination has no two connections of one dial; made reports that the older
// attempt has become a connection already. It waits until the older attempt was answered:
// before, its connection has no carrier, and is over if the answer cannot be sent.
func (m *Manager) registerDial(ctx context.Context, token [16]byte, at *dial) (made bool, err error) {
	for {
		m.mu.Lock()
		before, made := m.dials[token], m.acceptedLocked(token) != nil
		if before == nil {
			if !made {
				m.dials[token] = at
			}
			m.mu.Unlock()
			return made, nil
		}
		older, answered := before.number < at.number, before.answered
		before.givenUp = before.givenUp || older
		m.mu.Unlock()
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

// unregister removes at, once its opener has the answer. Only the first call counts.
func (m *Manager) unregister(token [16]byte, at *dial) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at.answered != nil {
		delete(m.dials, token)
		close(at.answered)
		at.answered = nil
	}
}

// errClosed is what a Manager that is closed ends connections with: net.ErrClosed at this end,
// and CodeGone at the other one.
var errClosed = &tunnel.ResetError{Code: tunnel.CodeGone, Loss: tunnel.LossLocal}

// errLeaving is what dials of a Manager that is closed fail with: the opener dials again.
var errLeaving = &tunnel.DialError{Failure: tunnel.FailAgentLost}

// answer answers the opener, and makes its stream the first carrier of a Conn.
func (m *Manager) answer(flow *tunnel.Flow, at *dial, far tunnel.Conn, err error, answer tunnel.Answer) (tunnel.Conn, error) {
	if err != nil {
		if m.ctx.Err() != nil && tunnel.FailureOf(err) == tunnel.FailCancelled {
			err = errLeaving
		}
		return answer(nil, err)
	}
	r := flow.Resume
	window := min(r.Window, m.opt.Window, MaxWindow)
	c := m.newConn(nil, window, r.Attempt, r.Token, flow.Address)
	c.dest = [2]net.Addr{far.LocalAddr(), far.RemoteAddr()}
	c.served = &served{far: far, asked: flow.Request, origin: flow.Origin, cancel: at.cancel, budget: m.budgetOf(flow.Origin)}
	at.conn = c
	c.mu.Lock() // its opener may resume it before it has its first carrier
	defer c.mu.Unlock()
	if err := m.add(c, at); err != nil {
		_, _ = answer(nil, err)
		return nil, err
	}
	r.Granted = tunnel.Grant{Window: m.opt.Window}
	near, err := answer(far, nil)
	st, ok := near.(Carrier)
	if err != nil || !ok {
		c.step(c.m.Reset(tunnel.Lost(tunnel.LossUnknown), false, time.Now()))
		return near, err
	}
	c.local, c.remote, c.st = near.LocalAddr(), near.RemoteAddr(), st
	c.watch(st)
	flow.Resumable, flow.Resume = c, nil // Resume was about this carrier
	return c, nil
}

// resume answers an opener that wants a connection to go on by another carrier.
func (m *Manager) resume(flow *tunnel.Flow, answer tunnel.Answer) error {
	r := flow.Resume
	c, refused := m.find(r.Token)
	if c != nil && c.address != flow.Address {
		refused = errGone
	}
	if refused != nil {
		_, err := answer(nil, refused)
		return err
	}
	if err := m.allows(flow, c); err != nil {
		c.happened((*Machine).Forbidden)
		_, _ = answer(nil, err)
		return err
	}
	number := max(r.Epoch, r.Attempt)
	taken, refused := c.offered(number, r.Taken)
	if refused != nil {
		_, err := answer(nil, refused)
		return err
	}
	r.Granted = tunnel.Grant{Window: m.opt.Window, Taken: taken}
	near, err := answer(tunnel.With(c, tunnel.Parts{Local: c.dest[0], Remote: c.dest[1]}), nil) // with the destination's addresses
	c.answered(number, near, err, flow)
	return nil
}

// allows reports why the policy forbids c by now, if it does.
func (m *Manager) allows(flow *tunnel.Flow, c *Conn) error {
	if m.opt.Allow == nil || c.dest[1] == nil { // an adopted connection has no destination any more if it was Left
		return nil
	}
	return m.opt.Allow(flow, c.dest[1])
}

// offered leaves the carrier before that with this epoch, waits until nothing comes out of
// it any more, and returns what to grant.
func (c *Conn) offered(epoch uint32, peerTaken uint64) (taken uint64, refused error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		a := c.resumeBy(c.m.Offered, epoch, peerTaken)
		c.do(a)
		switch {
		case a&Answer != 0:
			taken, _ := c.m.Tell()
			return taken, nil
		case a&RefuseStale != 0:
			return 0, &tunnel.DialError{Failure: tunnel.FailStale}
		case a&RefuseGone != 0:
			return 0, errGone
		case a&RefuseMoving != 0:
			return 0, errMoving
		}
		c.changed.Wait()
	}
}

// answered attaches near, the carrier that was granted, unless the answer did not reach the
// opener (err), or a newer carrier came meanwhile.
func (c *Conn) answered(epoch uint32, near tunnel.Conn, err error, flow *tunnel.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, ok := near.(Carrier)
	if err != nil || !ok {
		c.step(c.m.CarrierLost(epoch, tunnel.Lost(tunnel.LossUnknown), time.Now()))
		return
	}
	switch a := c.settle(c.m.CarrierUp(epoch, 0, time.Now())); {
	case a&refuses == 0:
		c.attach(st, flow)
		c.do(a)
	case c.m.Life() == Complete: // the opener may still write, which is not to be resumed
		_ = st.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
	case c.m.Life() == Ended:
		_ = st.Reset(&tunnel.ResetError{Code: c.m.ResetCode()})
	default:
		st.Detach()
	}
}
