package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel"
)

// Defaults of the Config.
const (
	DefaultPingInterval     = 5 * time.Second
	DefaultDeadAfter        = 15 * time.Second // with the interval: noticed within 20 s
	DefaultHandshakeTimeout = 10 * time.Second

	// SilentAfter is how long a living peer may say nothing: it is pinged every
	// DefaultPingInterval, and an answer takes its time.
	SilentAfter = DefaultPingInterval + 2*time.Second

	// farewell bounds how long Close may take to say goodbye.
	farewell = time.Second
)

// Config is what a session needs. The zero value of every field but Hello
// works.
type Config struct {
	// Hello introduces this side.
	Hello Hello

	// Verify judges the peer's Hello before any stream is served; its error
	// refuses the link and its text is what the peer is told, so it must
	// hold no secrets. nil accepts everybody.
	Verify func(ctx context.Context, peer Hello) error

	// Forwarder serves the streams that the peer opens, usually a
	// *tunnel.Forwarder; nil refuses them.
	Forwarder tunnel.Carrier

	// Budget bounds unread bytes, usually shared by all links of a process.
	Budget *Budget

	// PeerNumbersClients says that the peer may name the clients that its
	// streams are for; each then has a share of Budget. It is for agents,
	// whose servers know. A peer that is a client would give itself many.
	PeerNumbersClients bool

	// Hold keeps the link from reading, for a moment at a time; nil: never.
	// Links may share it.
	Hold *tunnel.Hold

	PingInterval     time.Duration // 0: DefaultPingInterval
	DeadAfter        time.Duration // 0: DefaultDeadAfter
	HandshakeTimeout time.Duration // 0: DefaultHandshakeTimeout

	Log logrus.FieldLogger // nil: silent
}

// Session is one link. It is a tunnel.Dialer that opens streams at the peer,
// and serves those that the peer opens. All methods may be called from any
// goroutine.
type Session struct {
	cfg     Config
	peer    Hello
	resumes bool // both sides take part in that (§9)
	lanes   bool // and in that (§10)

	ctx       context.Context // ends with the session
	cancel    context.CancelCauseFunc
	done      chan struct{}
	joined    chan struct{}
	draining  chan struct{}
	drainOnce sync.Once
	wg        sync.WaitGroup

	out       frameWriter       // belongs to whoever has the turn
	unflushed []tunnel.Receiver // the read loop's own: given something since they were last flushed

	mu     sync.Mutex // guards all below, and the streams
	ending error      // why the session is about to end: nobody gets another turn
	err    error      // why the session ended

	streams  streams
	unacked  []unacked // of them, those that have ended
	clients  clientBudgets
	dials    int       // of the peer's streams, under way
	resuming int       // likewise, of connections that exist
	serving  int       // of them all: what the Forwarder has not done with
	pausing  bool      // the read loop waits until the peer was told more
	idleCond sync.Cond // a stream was the last, was served, the peer was told, or nobody sends

	queue     sendQueue
	doubted   bool // it has to show soon that it lives
	wantFlush bool
	flushing  bool // the flusher runs
	flushCond sync.Cond

	looks *time.Timer // calls look
	alive liveness
	news  Hello // of the peer since its HELLO: only what INFO may change
	count counters
	alarm alarm // when count has grown by so much
}

// counters are a session's figures so far.
type counters struct {
	sent, received           uint64
	dataSent, dataReceived   uint64 // DATA frames; those of small messages are the sendQueue's
	opened, accepted, resets uint64
	answered, established    uint64
	unread                   int
}

// moved is payload, both ways.
func (c *counters) moved() uint64 { return c.sent + c.received }

// GoAwayError is why a link ended, told by or to the peer.
type GoAwayError struct {
	Code GoAwayCode
	Text string
}

func (e *GoAwayError) Error() string {
	if e.Text == "" {
		return "the peer ended the link: " + e.Code.String()
	}
	return fmt.Sprintf("the peer ended the link: %s: %q", e.Code, e.Text)
}

// ErrDead is why a link ended whose peer sent no frame, or took no bytes, for
// DeadAfter.
var ErrDead = errors.New("the peer has been silent, or has read nothing, for too long")

// ErrClosed is why a link ended that was closed on this side.
var ErrClosed = fmt.Errorf("link: %w", net.ErrClosed)

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

// Meet is Accept for whoever has a goroutine to give: nothing is read before it
// calls Run, which it must do once and soon, also if the session has ended by then.
// Close waits for the end of Run.
func Meet(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	return meet(ctx, conn, cfg, false)
}

func meet(ctx context.Context, conn net.Conn, cfg Config, initiator bool) (*Session, error) {
	ses := newSession(conn, cfg, initiator)
	hs := handshake{conn: conn, cfg: &ses.cfg}
	if err := hs.shake(ctx, initiator); err != nil {
		ses.cancel(err)
		_ = conn.Close()
		return nil, err
	}
	ses.peer = hs.peer
	ses.resumes, ses.lanes = ses.both(FeatureResume), ses.both(FeatureLanes)
	ses.news = Hello{ServerCount: ses.peer.ServerCount, Serving: ses.peer.Serving}
	ses.peer.forget()
	ses.begin()
	return ses, nil
}

// both says whether both sides named a feature.
func (ses *Session) both(feature string) bool {
	return slices.Contains(ses.cfg.Hello.Features, feature) && slices.Contains(ses.peer.Features, feature)
}

func newSession(conn net.Conn, cfg Config, initiator bool) *Session {
	setDefault(&cfg.PingInterval, DefaultPingInterval)
	setDefault(&cfg.DeadAfter, DefaultDeadAfter)
	setDefault(&cfg.HandshakeTimeout, DefaultHandshakeTimeout)
	ses := &Session{
		cfg: cfg, out: newFrameWriter(conn),
		clients: clientBudgets{whole: cfg.Budget, numbered: cfg.PeerNumbersClients},
		alive:   liveness{interval: cfg.PingInterval, deadAfter: cfg.DeadAfter, accepted: !initiator},
		done:    make(chan struct{}), joined: make(chan struct{}), draining: make(chan struct{}),
		streams: newStreams(initiator), queue: sendQueue{budget: cfg.Budget},
	}
	ses.idleCond.L, ses.flushCond.L = &ses.mu, &ses.mu
	ses.ctx, ses.cancel = context.WithCancelCause(context.Background())
	return ses
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

// begin starts all of the session but its read loop.
func (ses *Session) begin() {
	if cork := ses.out.cork; cork != nil {
		cork.take(ses.flushDelivered, &ses.out.writes)
	}
	now := time.Now()
	ses.alive.looked, ses.alive.heard = now, now
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.looks = time.AfterFunc(ses.cfg.PingInterval, ses.look)
	ses.pingLocked(now)
}

// Run reads until the session ends, and joins what else it has started. It is the
// only goroutine that lasts as long as the session, since most links do nothing
// most of their lives and a server of many clusters has thousands. Only who called
// Meet calls it, once.
func (ses *Session) Run() {
	ses.fail(ses.readLoop())
	ses.wg.Wait()
	close(ses.joined)
}

// Peer is how the other side introduced itself, without what was of use for that
// alone: its token, its features and, unless it is an agent, its identifiers.
func (ses *Session) Peer() Hello { return ses.peer }

// Done is closed when the session has ended. Its goroutines may still be
// winding down; Close waits for them.
func (ses *Session) Done() <-chan struct{} { return ses.done }

// Life ends with the session, right after Done is closed.
func (ses *Session) Life() context.Context { return ses.ctx }

// Err is why the session ended, nil while it has not.
func (ses *Session) Err() error {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.err
}

// Draining is closed when the peer has asked for new streams to go elsewhere.
func (ses *Session) Draining() <-chan struct{} { return ses.draining }

// Drain asks the peer to open its new streams elsewhere. Open streams go on,
// and one that is opened nevertheless is served. It does not block.
func (ses *Session) Drain() {
	ses.sendControl(appendGoAway(nil, GoAwayDrain, ""))
}

// SetServerCount tells the peer of a new number of servers. It does not block.
func (ses *Session) SetServerCount(n int) { ses.inform(Hello{ServerCount: n}) }

// SetServing tells the peer whether agents serve from now on. It does not block.
func (ses *Session) SetServing(s Serving) { ses.inform(Hello{Serving: s}) }

// inform tells the peer what has changed since HELLO.
func (ses *Session) inform(news Hello) {
	news.Role = ses.cfg.Hello.Role
	payload, err := news.encode()
	if err != nil {
		return // a role, and a number or a short text, always fit
	}
	ses.sendControl(appendFrame(nil, frameInfo, 0, 0, payload))
}

func (ses *Session) sendControl(frame []byte) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err == nil {
		ses.queue.pushControl(frame)
		ses.wakeFlusherLocked()
	}
}

// ServerCount is the newest number of servers that the peer told, 0 if none.
func (ses *Session) ServerCount() int {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.news.ServerCount
}

// Serving is the newest that the peer told of its agents.
func (ses *Session) Serving() Serving {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.news.Serving
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

// Stats is a session's figures at one moment.
type Stats struct {
	Streams          int    // open now
	Sent, Received   uint64 // payload bytes
	Unread           int    // received bytes that nobody has read yet
	Opened, Accepted uint64 // streams, so far
	Answered         uint64 // of them, those whose dial was answered, either way
	Ended            uint64 // of them, those that were established and are over
	DataSent         uint64 // DATA frames
	DataReceived     uint64
	Resets           uint64        // streams that this side reset for the protocol's or memory's sake
	RTT              time.Duration // 0: unknown
	Stalled          int           // streams whose window is full and not being read
	LargestWindow    uint64        // of all open streams, bytes
	Lanes            int           // connections
}

// Plus is both together: sums, and the longest and largest.
func (s Stats) Plus(o Stats) Stats {
	s.Count(o)
	s.Streams += o.Streams
	s.Stalled += o.Stalled
	s.Unread += o.Unread
	s.Lanes += o.Lanes
	s.LargestWindow = max(s.LargestWindow, o.LargestWindow)
	s.RTT = max(s.RTT, o.RTT)
	return s
}

// Count adds the counters of o, which is over.
func (s *Stats) Count(o Stats) {
	s.Answered += o.Answered
	s.Ended += o.Ended
	s.DataSent += o.DataSent
	s.DataReceived += o.DataReceived
	s.Opened += o.Opened
	s.Accepted += o.Accepted
	s.Resets += o.Resets
	s.Sent += o.Sent
	s.Received += o.Received
}

// Stats costs one pass over the open streams.
func (ses *Session) Stats() Stats {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	c := &ses.count
	s := Stats{
		Lanes: 1, Streams: ses.streams.count(), Sent: c.sent, Received: c.received, Unread: c.unread,
		Opened: c.opened, Accepted: c.accepted, Resets: c.resets, RTT: ses.alive.rtt,
		Answered: c.answered, Ended: c.established,
		DataSent: c.dataSent + ses.queue.dataFrames, DataReceived: c.dataReceived,
	}
	for _, st := range ses.streams.byID {
		if st.state.established() {
			s.Ended--
		}
		credit := &st.recv.credit
		s.LargestWindow = max(s.LargestWindow, credit.window)
		if credit.received == credit.limit && credit.unread() > 0 {
			s.Stalled++
		}
	}
	return s
}

// WaitIdle returns once no stream is open and the Forwarder is done with those
// of the peer, which takes longer while what came before the end is still being
// delivered. It also returns once the session has ended, or once ctx has, then
// with ctx's cause.
func (ses *Session) WaitIdle(ctx context.Context) error {
	defer context.AfterFunc(ctx, ses.wakeIdle)()
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for !ses.idle() && ses.err == nil && ctx.Err() == nil {
		ses.idleCond.Wait()
	}
	if !ses.idle() && ses.err == nil {
		return context.Cause(ctx)
	}
	return nil
}

func (ses *Session) wakeIdle() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.idleCond.Broadcast()
}

func (ses *Session) idle() bool { return ses.streams.count() == 0 && ses.serving == 0 }

// Close ends the session and all its streams, tells the peer as far as it can
// within a second, and returns when every goroutine of the session has ended.
// So it must not be called from within its Forwarder.
func (ses *Session) Close() error { return ses.CloseWith(GoAwayShutdown, "") }

// CloseWith is Close with the reason that the peer is told.
func (ses *Session) CloseWith(code GoAwayCode, text string) error {
	ses.sayGoodbye(ErrClosed, code, text)
	ses.end(ErrClosed)
	<-ses.joined
	return nil
}

// fail ends the session for cause, and tells a peer that broke the protocol.
func (ses *Session) fail(cause error) {
	if v := violation(""); errors.As(cause, &v) && ses.Err() == nil {
		ses.logViolation(cause)
		ses.sayGoodbye(cause, GoAwayProtocol, string(v))
	}
	ses.end(cause)
}

func (ses *Session) end(cause error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.failLocked(cause)
}

func (ses *Session) logViolation(cause error) {
	if ses.cfg.Log != nil {
		ses.cfg.Log.WithError(cause).WithField("peer", ses.peer.String()).Warn("ending a link whose peer breaks the protocol")
	}
}

// failLocked ends the session once: every stream is lost, every waiter woken,
// and the connection closed, which may block and so is not done under the mutex.
func (ses *Session) failLocked(cause error) {
	if ses.err != nil {
		return
	}
	if ses.ending != nil {
		cause = ses.ending // not that the farewell failed
	}
	ses.err = cause
	close(ses.done)
	ses.cancel(errLinkLost)
	for _, st := range ses.streams.byID {
		st.loseLocked(errLinkLost)
	}
	ses.queue.clear()
	ses.looks.Stop()
	ses.wg.Go(ses.out.close)
	ses.flushCond.Broadcast()
	ses.idleCond.Broadcast()
}
