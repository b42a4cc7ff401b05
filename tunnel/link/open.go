package link

import (
	"context"
	"errors"
	"net"

	"konnectivity/tunnel"
)

// FeatureIdentity is named in the HELLO of servers, except to their clients, and of agents:
// OPEN tells who the client is (§12).
const FeatureIdentity = "identity"

// FeatureRules is named by the same: OPEN tells the rules that the address of a name is held
// to (§12).
const FeatureRules = "rules"

// Dial opens a stream to f.Address through the peer. It implements
// tunnel.Dialer: it waits for the peer's answer or for ctx, and a stream that
// is opened too late is reset at the peer.
func (ses *Session) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	network, address := f.Network, f.Address
	if len(address) > maxAddress || len(f.Rules) > tunnel.RulesSize || network == "" || len(network) > maxText {
		return nil, &tunnel.DialError{Failure: tunnel.FailBadAddress, Address: cut(address)}
	}
	if err := ctx.Err(); err != nil {
		return nil, tunnel.AsDialError(address, context.Cause(ctx))
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err != nil {
		return nil, ses.lost(address)
	}
	if f.Rules != "" && !ses.judges {
		return nil, f.Unjudged()
	}
	if f.Resume.Again() && !ses.resumes {
		return nil, &tunnel.DialError{Failure: tunnel.FailUnavailable, Address: address, Reason: "the peer does not resume connections"}
	}
	st := ses.openLocked(f)
	ses.doubtLocked()
	defer context.AfterFunc(ctx, waker(&st.recv.cond))()
	for st.state == opening && ctx.Err() == nil {
		st.recv.cond.Wait()
	}
	opened := st.opened
	far, err := st.dialedLocked(ctx, network, address)
	if err == nil && f.Resume != nil && ses.resumes {
		f.Resume.Granted = opened.grant
		st.carrier.outlived = opened.grant.Window > 0
	}
	return far, err
}

// openLocked sends OPEN.
func (ses *Session) openLocked(f *tunnel.Flow) *Stream {
	budget := ses.intake.budget
	if f.Client != nil { // one link carries many
		budget = f.Client.Budget
	}
	st := newStream(ses, ses.streams.give(), budget)
	m := openMsg{network: f.Network, address: f.Address, credit: st.recv.credit.limit, id: tunnel.CleanID(f.ID), span: f.Span.ID}
	m.client = budget.Number()
	m.forwarded, m.cluster = ses.servers, f.Tenant()
	if ses.identities {
		m.who = f.Who()
	}
	if ses.judges {
		m.rules = f.Rules
	}
	if ses.resumes {
		m.resume = f.Resume
	}
	ses.streams.add(st)
	ses.count.opened++
	ses.sender.pushIntro(&st.send, frameOpen, m.encode())
	st.onLocked(sendsOpen)
	return st
}

// dialedLocked returns the outcome of a dial that was answered, lost or given
// up.
func (st *Stream) dialedLocked(ctx context.Context, network, address string) (tunnel.Conn, error) {
	ses := st.ses
	switch {
	case st.state == opening: // given up by ctx
		unsent := st.send.out.intro != nil
		st.sendResetLocked(tunnel.CodeCancelled)
		if unsent { // the peer need not hear of it at all
			st.send.out.intro, st.send.out.reset = nil, false
		}
		st.dropLocked(net.ErrClosed, net.ErrClosed)
		return nil, tunnel.AsDialError(address, context.Cause(ctx))
	case st.opened == nil: // reset by the peer, or the link is lost
		var reset *tunnel.ResetError
		if ses.err != nil || !errors.As(st.recv.end, &reset) {
			return nil, ses.lost(address)
		}
		return nil, &tunnel.DialError{Failure: tunnel.FailReset, Address: address, Err: st.recv.end}
	case st.opened.failure != 0:
		return nil, &tunnel.DialError{Failure: st.opened.failure, Address: address, Reason: st.opened.reason}
	}
	st.local = tunnel.Addr{Net: network, Text: st.opened.local}
	st.remote = tunnel.Addr{Net: network, Text: st.opened.remote}
	st.opened = nil
	return st, nil
}

// lost is the error where no stream can be had on this link. It names the agent
// if the peer is one, or a server that has it, so that a router knows that another may
// serve, and an opener that its dial may have been made.
func (ses *Session) lost(address string) error {
	failure := tunnel.FailUnavailable
	if ses.peer.Role == RoleAgent || ses.servers {
		failure = tunnel.FailAgentLost
	}
	return &tunnel.DialError{Failure: failure, Address: address, Err: ses.err, LostInFlight: true}
}

func (r *frameReader) handleOpened(st *Stream, payload []byte) error {
	ses := r.ses
	if !ses.streams.own(st.id()) {
		return violation("OPENED for a stream of the sender's own")
	}
	m := new(openedMsg)
	if err := m.decode(payload); err != nil {
		return violation("OPENED: " + err.Error())
	}
	if st.state != opening || m.credit > maxCredit {
		st.breachLocked()
		return nil
	}
	st.opened = m
	ses.count.answered++
	if m.failure != 0 {
		st.onLocked(receivesFailure)
	} else {
		st.send.credit.raise(m.credit)
		st.onLocked(receivesOpened)
		ses.count.established++
	}
	st.recv.cond.Broadcast()
	return nil
}

func (r *frameReader) handleOpen(id uint64, payload []byte) error {
	ses := r.ses
	if !ses.streams.use(id) {
		return violation("OPEN with an id that is not its own to use")
	}
	if r.open == nil {
		r.open = new(openMsg)
	}
	err := r.open.decode(payload)
	m := *r.open
	*r.open = openMsg{}
	if err != nil || m.credit > maxCredit {
		return violation("OPEN does not parse")
	}
	if !ses.resumes {
		m.resume = nil
	}
	if ses.sender.awaitBacklogUnlocked(r.unflushed.flush); ses.err != nil { // deliveries do not wait for this peer
		return ses.err
	}
	refusal, budget := ses.intake.refusal(m, &ses.streams), ses.intake.budget
	if refusal == nil {
		budget = ses.intake.enter(m, ses.peer.ID)
	}
	st := newStream(ses, id, budget)
	st.local, st.remote = ses.sender.conn.LocalAddr(), ses.sender.conn.RemoteAddr()
	st.send.credit.raise(m.credit)
	if refusal != nil {
		ses.sender.pushIntro(&st.send, frameOpened, refusal.encode())
		ses.sender.queue.orphan(&st.send)
		return nil
	}
	if ses.life == nil {
		ses.life, ses.endLife = context.WithCancelCause(context.Background())
	}
	ctx, cancel := context.WithCancelCause(ses.life)
	st.cancel = cancel
	ses.streams.add(st)
	st.onLocked(receivesOpen)
	ses.count.accepted++
	ses.wg.Add(1)
	go ses.serve(ctx, cancel, st, ses.flowOf(m))
	return nil
}

// flowOf is what the peer asks for. It is made before the stream has a goroutine, for which
// the message would be allocated.
func (ses *Session) flowOf(m openMsg) *tunnel.Flow {
	flow := &tunnel.Flow{
		Request: tunnel.Request{ID: m.id, Front: "link", Network: m.network, Address: m.address, Source: ses.sender.conn.RemoteAddr()},
		Span:    tunnel.Span{Parent: m.span},
		Resume:  m.resume,
	}
	if ses.judges {
		flow.Rules = m.rules
	}
	if ses.intake.clients != nil {
		flow.Origin = tunnel.Origin{Server: ses.peer.ID, Client: m.client, Cluster: m.cluster}
		if ses.identities {
			flow.Origin.Who = m.who
		}
	}
	return flow
}

// serve makes the connection that the peer asked for and relays it. Where nothing has to
// be read, as between two links, that goes on without it.
func (ses *Session) serve(ctx context.Context, cancel context.CancelCauseFunc, st *Stream, flow *tunnel.Flow) {
	again := flow.Resume.Again()
	answered := false
	answer := func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		answered = true
		return ses.answer(st, again, flow.Resume, far, err)
	}
	ses.handler.Serve(ctx, flow, answer, func(err error) {
		if !answered {
			_, _ = answer(nil, &tunnel.DialError{Failure: tunnel.FailInternal, Err: err})
		}
		ses.mu.Lock()
		ses.intake.serving--
		ses.idleCond.Broadcast()
		ses.mu.Unlock()
		cancel(nil)
		ses.wg.Done()
	})
}

// answer sends OPENED. again says that the peer resumes a connection; resume has what
// the peer is granted, nil: nothing.
func (ses *Session) answer(st *Stream, again bool, resume *tunnel.Resume, far tunnel.Conn, err error) (tunnel.Conn, error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	*ses.intake.pending(again)--
	if st.state == closed { // cancelled, or the link is lost
		return nil, st.send.end
	}
	ses.count.answered++
	if err != nil {
		typed := tunnel.AsDialError("", err)
		m := openedMsg{failure: typed.Failure, reason: typed.Text()}
		ses.sender.pushIntro(&st.send, frameOpened, m.encode())
		st.onLocked(sendsFailure)
		st.recv.end, st.send.end = err, err
		return st, nil
	}
	m := openedMsg{credit: st.recv.credit.limit, local: addrText(far.LocalAddr()), remote: addrText(far.RemoteAddr())}
	if resume != nil {
		m.grant = resume.Granted
		st.carrier.outlived = m.grant.Window > 0
	}
	ses.sender.pushIntro(&st.send, frameOpened, m.encode())
	st.onLocked(sendsOpened)
	ses.count.established++
	return st, nil
}

func addrText(a interface{ String() string }) string {
	if a == nil {
		return ""
	}
	return a.String()
}
