package link

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel"
)

// Times of a link; the first two are defaults of the Config.
const (
	DefaultPingInterval = 5 * time.Second
	DefaultDeadAfter    = 15 * time.Second

	// HandshakeTimeout bounds the exchange of HELLOs.
	HandshakeTimeout = 10 * time.Second

	// SilentAfter is how long a living peer may say nothing: it is pinged every
	// DefaultPingInterval, and an answer takes its time.
	SilentAfter = DefaultPingInterval + 2*time.Second

	// farewell bounds how long Close may take to say goodbye, and then how long it waits for
	// the peer to have read it, if a stream was reset within as much before.
	farewell = time.Second

	// linger is what bounds that wait where the session is barred.
	linger = 5 * time.Second
)

// Config is what a session needs. The zero value of every field but Hello
// works.
type Config struct {
	// Hello introduces this side.
	Hello Hello

	// Verify judges the peer's Hello before any stream is served. Its error
	// refuses the link, and is sent to the peer, so it must hold no secrets.
	// nil accepts every peer.
	Verify func(ctx context.Context, peer Hello) error

	// Handler serves the streams that the peer opens, usually a
	// *tunnel.Forwarder; nil refuses them.
	Handler tunnel.Handler

	// Budget bounds unread bytes, usually shared by all links of a process.
	Budget *Budget

	// Clients, of a peer that may name the clients that its streams are for: each has a
	// share of Budget, and is who the peer says. It is for agents, whose servers know. A
	// peer that is a client would give itself many. nil: the peer is not believed.
	Clients *Clients

	// Hold keeps the link from reading, for a moment at a time; nil: never.
	// Links may share it.
	Hold *tunnel.Hold

	PingInterval time.Duration // 0: DefaultPingInterval
	DeadAfter    time.Duration // 0: DefaultDeadAfter

	Log logrus.FieldLogger // nil: silent
}

// Session is one link. It is a tunnel.Dialer that opens streams at the peer,
// and serves those that the peer opens. All methods may be called from any
// goroutine.
type Session struct {
	// Immutable once both HELLOs are exchanged.

	role    Role // this side's
	handler tunnel.Handler
	hold    *tunnel.Hold
	log     logrus.FieldLogger // nil: silent
	peer    Hello
	resumes bool // both sides take part in resuming (§9)
	lanes   bool // both sides take part in lanes (§10)
	forward bool // the peer is a server that forwards (§11)
	servers bool // both sides are

	identities bool // both sides tell and take clients' identities (§12)
	api        bool // the agent may ask for the API server (§13)
	judges     bool // the acceptor holds names to rules that the opener tells (§12)

	ends   tunnel.Event
	drains tunnel.Event   // the peer asks for new streams to go elsewhere
	wg     sync.WaitGroup // Run, and the goroutines of the session

	// Owned by Run's goroutine.

	reader frameReader

	// Guarded by mu, as are the streams. A part of the sender is the writer's.

	mu     sync.Mutex
	sender sender
	books
	alive    liveness
	looks    *time.Timer // calls look
	source   netip.Addr  // from which the peer would be reached, as of the last Rerouted
	news     news
	idleCond sync.Cond // a stream was the last, or was served, or the session ended
	err      error     // why the session ended; nil: it has not

	// life is of the streams that the peer opens, nil before the first: most links of an agent
	// have none.

	life    context.Context
	endLife context.CancelCauseFunc
}

// books are what a session accounts for.
type books struct {
	streams streams
	intake  intake
	count   counters
	alarm   alarm
	barred  bool      // see Bar
	mixed   time.Time // when a stream was last read that is no bulk
	reset   time.Time // when a stream was last reset by its holder, or as the one it is joined to
}

// alone reports whether the link has carried nothing but bulk for aloneAfter. A stream
// was read just now, which is bulk or not.
func (b *books) alone(bulk bool, now time.Time) bool {
	if !bulk {
		b.mixed = now
	}
	return now.Sub(b.mixed) >= aloneAfter
}

// news are what the peer's HELLO, or an INFO since, said last.
type news struct {
	serverCount int
	serving     Serving
}

// Connect starts a link as the side that dialed the connection. It returns
// once both HELLOs are exchanged, or with why not: a *GoAwayError when the
// peer refused. It takes conn over, also when it fails. ctx bounds only the
// start.
func Connect(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	return start(ctx, conn, cfg, true)
}

// Accept starts a link as the side that accepted the connection; else as
// Connect.
func Accept(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	return start(ctx, conn, cfg, false)
}

func start(ctx context.Context, conn net.Conn, cfg Config, initiator bool) (*Session, error) {
	ses, err := meet(ctx, conn, cfg, initiator)
	if err != nil {
		return nil, err
	}
	go ses.Run()
	return ses, nil
}

// Meet is Accept for a caller that has a goroutine to give: nothing is read before the
// caller calls Run, which it must do once and soon, also if the session has ended by
// then, and then Close, which waits for the end of Run.
func Meet(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	return meet(ctx, conn, cfg, false)
}

// meet returns a session of which all but Run has begun.
func meet(ctx context.Context, conn net.Conn, cfg Config, initiator bool) (*Session, error) {
	cfg.PingInterval = cmp.Or(cfg.PingInterval, DefaultPingInterval)
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, DefaultDeadAfter)
	ses := newSession(conn, cfg, initiator)
	hs := handshake{conn: conn, cfg: &cfg}
	if err := hs.shake(ctx, initiator); err != nil {
		_ = conn.Close()
		return nil, err
	}
	ses.peer = hs.peer
	both := func(feature string) bool {
		return slices.Contains(cfg.Hello.Features, feature) && slices.Contains(hs.peer.Features, feature)
	}
	ses.resumes, ses.lanes = both(FeatureResume), both(FeatureLanes)
	ses.identities, ses.judges, ses.api = both(FeatureIdentity), both(FeatureRules), both(FeatureAPI)
	ses.forward = hs.peer.FromServer()
	ses.servers = ses.forward && cfg.Hello.FromServer()
	ses.news = news{ses.peer.ServerCount, ses.peer.Serving}
	ses.peer.forget()
	if buffer := ses.sender.buffer; buffer != nil {
		buffer.take(ses.reader.unflushed.flush, &ses.sender.writes)
	}
	ses.reader.rest = prepareRest(conn) // here, since it takes more stack than Run has
	now := time.Now()
	ses.alive.Silence, ses.alive.heard = NewSilence(cfg.PingInterval, cfg.DeadAfter, now), now
	ses.wg.Add(1) // Run
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.looks = time.AfterFunc(cfg.PingInterval, ses.look)
	ses.pingLocked(now)
	return ses, nil
}

// newSession takes of cfg what a session needs after the handshake: a server has thousands.
func newSession(conn net.Conn, cfg Config, initiator bool) *Session {
	ses := &Session{
		role: cfg.Hello.Role, handler: cfg.Handler, hold: cfg.Hold, log: cfg.Log,
		books: books{
			streams: newStreams(initiator),
			intake:  intake{refuses: cfg.Handler == nil, budget: cfg.Budget, clients: cfg.Clients},
		},
		alive: liveness{accepted: !initiator},
	}
	ses.reader.ses, ses.idleCond.L = ses, &ses.mu
	ses.sender = sender{
		frameWriter: newFrameWriter(conn), queue: sendQueue{budget: cfg.Budget},
		mu: &ses.mu, wg: &ses.wg, sent: ses.sentLocked, fail: ses.failLocked, writer: writerFree,
		freed: sync.Cond{L: &ses.mu}, flushCond: sync.Cond{L: &ses.mu},
	}
	return ses
}

// Run reads until the session ends. It is the only goroutine that lasts as long as the
// session: most links do nothing most of their lives, and a server of many clusters has
// thousands. Of this package's users, only the caller of Meet calls it, once.
func (ses *Session) Run() {
	defer ses.wg.Done()
	ses.fail(ses.reader.run())
}

// Peer is the peer's HELLO, without its token, its features and, unless the peer is an
// agent, its identifiers.
func (ses *Session) Peer() Hello { return ses.peer }

// Done is closed when the session has ended. Its goroutines may still be
// winding down; Close waits for them.
func (ses *Session) Done() <-chan struct{} { return ses.ends.Done() }

// Ends happens when Done is closed.
func (ses *Session) Ends() *tunnel.Event { return &ses.ends }

// Err is why the session ended, nil while it has not. tunnel.LossOf names its cause.
func (ses *Session) Err() error {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.err
}

// Drains happens when the peer has asked for new streams to go elsewhere, and not with the
// session.
func (ses *Session) Drains() *tunnel.Event { return &ses.drains }

// Drain asks the peer to open its new streams elsewhere. Open streams go on, and a
// stream that the peer opens nevertheless is served. Drain does not block.
func (ses *Session) Drain() {
	ses.sender.pushControl(controlDrain, appendGoAway(nil, GoAwayDrain, ""))
}

// SetServerCount tells the peer of a new number of servers. It does not block.
func (ses *Session) SetServerCount(n int) { ses.inform(controlCount, Hello{ServerCount: n}) }

// SetServing tells the peer whether agents serve from now on. It does not block.
func (ses *Session) SetServing(s Serving) { ses.inform(controlServing, Hello{Serving: s}) }

// inform sends INFO.
func (ses *Session) inform(kind control, news Hello) {
	news.Role = ses.role
	payload, err := news.encode()
	if err != nil {
		return // a role, and a number or a short text, always fit
	}
	ses.sender.pushControl(kind, appendFrame(nil, frameInfo, 0, 0, payload))
}

// ServerCount is the number of servers that the peer stated last; 0: none.
func (ses *Session) ServerCount() int {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.news.serverCount
}

// Serving is what the peer stated last about its agents.
func (ses *Session) Serving() Serving {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.news.serving
}

// Streams is how many streams are open or being opened, either way.
func (ses *Session) Streams() int {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.streams.count()
}

// RTT is the smoothed round trip to the peer, 0 while unknown.
func (ses *Session) RTT() time.Duration {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.alive.rtt
}

// Heard is when the peer last sent a frame; one that lives pings, or answers a ping,
// at least every PingInterval.
func (ses *Session) Heard() time.Time {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.alive.heard
}

// WaitIdle returns once no stream is open and the Handler is done with the peer's,
// which may still deliver their last bytes. It also returns once the session
// has ended, or, with ctx's cause, once ctx has.
func (ses *Session) WaitIdle(ctx context.Context) error {
	defer context.AfterFunc(ctx, waker(&ses.idleCond))()
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for !ses.idleLocked() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		ses.idleCond.Wait()
	}
	return nil
}

// Idle reports whether WaitIdle would return at once.
func (ses *Session) Idle() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.idleLocked()
}

func (ses *Session) idleLocked() bool {
	return ses.err != nil || ses.streams.empty() && ses.intake.serving == 0
}

// Bar resets all streams with a code, and refuses those that the peer opens from now on. It
// does not block; the session is closed next, which then waits for its peer for up to 5 s.
func (ses *Session) Bar(code tunnel.Code) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.intake.refuses, ses.barred = true, true
	for _, st := range ses.streams.byID {
		if st.cancel != nil { // or the link's end could come first, and be taken for the cause
			st.cancel(&tunnel.ResetError{Code: code})
		}
		st.resetLocked(code)
	}
}

// Close ends the session and all its streams, tells the peer if that takes at most a
// second, and returns when every goroutine of the session has ended. If streams were reset
// just before, it waits for at most another second until the peer has read that. The
// session's Handler must not call it.
func (ses *Session) Close() error { return ses.CloseWith(GoAwayShutdown, "") }

// CloseWith is Close with a reason for the peer.
func (ses *Session) CloseWith(code GoAwayCode, text string) error {
	cause := ErrClosed
	if code == GoAwayDuplicate {
		cause = errDuplicate
	}
	began := time.Now()
	ses.sender.sayGoodbye(cause, code, text)
	select {
	case <-ses.Done():
	case <-time.After(ses.unread(began)):
	}
	ses.fail(cause)
	ses.wg.Wait()
	return nil
}

// Replaced ends the session at once, without a word to the peer, which has lost it and has made
// another.
func (ses *Session) Replaced() { ses.fail(errDuplicate) }

// unread is for how long the peer, which closes the link at a GOAWAY, is waited for by a Close that
// began then: a connection that is closed while its peer writes fails there, and resets that it has
// not read are lost.
func (ses *Session) unread(began time.Time) time.Duration {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch {
	case ses.barred:
		return linger
	case began.Sub(ses.reset) < farewell: // not from now on: a goodbye takes long where the peer reads late
		return farewell
	}
	return 0
}

// fail ends the session for cause, and tells a peer that broke the protocol.
func (ses *Session) fail(cause error) {
	if v := violation(""); errors.As(cause, &v) && ses.Err() == nil {
		if ses.log != nil {
			ses.log.WithError(cause).WithField("peer", ses.peer.String()).Warn("ending a link whose peer breaks the protocol")
		}
		ses.sender.sayGoodbye(cause, GoAwayProtocol, string(v))
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.failLocked(cause)
}

// failLocked ends the session once: every stream is lost, every waiter woken,
// and the connection closed.
func (ses *Session) failLocked(cause error) {
	if ses.err != nil {
		return
	}
	if ses.sender.cause != nil {
		cause = ses.sender.cause // not that the farewell failed
	}
	ses.err = cause
	lost := tunnel.Lost(tunnel.LossOf(cause))
	if ses.life != nil {
		ses.endLife(lost)
	}
	ses.ends.Happen()
	for _, st := range ses.streams.byID {
		st.loseLocked(lost)
	}
	ses.looks.Stop()
	ses.sender.stopLocked()
	ses.idleCond.Broadcast()
}
