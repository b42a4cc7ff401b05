package resume

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"konnectivity/tunnel"
)

// The simulation: two ends, one to three servers between them, links that are
// cut at any byte, stand still and come back, servers that are killed, carriers
// that are tried twice at once or reset as soon as they are there, readers that stall, ends that keep much or little,
// become plain, lie, are closed or given up or die, and windows that pass; all in
// virtual time and from one seed. The oracle is that what an end takes is what the
// other wrote, byte by byte, that both have all of it in the end if both live and
// a carrier came back in time, and that an end is to acknowledge at once just
// where the protocol says so.

// world is one run.
type world struct {
	rnd   *rand.Rand
	now   time.Duration
	queue []event // in the order in which they happen
	tally
	failed error

	ends    [2]*actor
	servers []*server
	spite   time.Duration // until then, the acceptor's process resets each carrier at once
	spited  int           // carriers that it has reset
	healing bool          // no more faults
	deadly  bool          // something happens that connections cannot outlive
	down    bool          // no link returns
}

const opener, acceptor = 0, 1

// epochStart gives virtual time a date.
var epochStart = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) time() time.Time { return epochStart.Add(w.now) }

type event struct {
	at time.Duration
	do func()
}

// after schedules do. Events of the same time happen in the order in which they were scheduled.
func (w *world) after(d time.Duration, do func()) {
	at := w.now + d
	place, _ := slices.BinarySearchFunc(w.queue, at, func(e event, at time.Duration) int {
		if e.at <= at {
			return -1
		}
		return 1
	})
	w.queue = slices.Insert(w.queue, place, event{at, do})
}

// upTo is a random time.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d) + 1)) }

func (w *world) chance(percent int) bool { return w.rnd.IntN(100) < percent }

func (w *world) fail(format string, args ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf("at %v: %s", w.now, fmt.Sprintf(format, args...))
	}
}

// server has two links, which come and go.
type server struct {
	links [2]*simLink // toward opener and acceptor; nil: down
}

// simLink is a link between an end and a server.
type simLink struct {
	dead   bool
	silent bool          // nothing comes through
	until  time.Duration // nothing comes through before
	flying [2][]flying   // by direction, in order
	legs   []*leg
}

// flying is a frame on its way.
type flying struct {
	leg *leg
	frame
}

// leg is one stream: a carrier's part on one link.
type leg struct {
	link  *simLink
	epoch uint32         // of the carrier
	far   [2]func(frame) // who takes what is sent to the end and to the server
	lost  [2]func()      // who hears that the link has died
	torn  [2]bool        // nothing more comes
}

func (l *leg) hear(side int) {
	l.torn[side] = true
	if lost := l.lost[side]; lost != nil {
		l.lost[side] = nil
		lost()
	}
}

type frame struct {
	kind byte // 'd'ata, 'a'ck, 'r'eset, 'o'pen, 'O'pened
	data []tunnel.Chunk
	fin  bool
	n    uint64 // offset
	big  bool   // flag 2 of ACK: its sender keeps much
	code tunnel.Code
	ep   uint32
	fail error
}

const toEnd, toServer = 0, 1

// send has f arrive at the other end of l unless the link dies before.
func (w *world) send(l *leg, dir int, f frame) {
	link := l.link
	if link.dead {
		tunnel.ReleaseAll(f.data)
		return
	}
	link.flying[dir] = append(link.flying[dir], flying{l, f})
	w.after(w.upTo(3*time.Millisecond), func() { w.arrive(link, dir) })
}

// arrive takes the next frame off a link, which need not be the one that was
// sent when this arrival was set: links keep their order.
func (w *world) arrive(link *simLink, dir int) {
	if w.now < link.until && !link.dead { // it stands still meanwhile
		w.after(link.until-w.now, func() { w.arrive(link, dir) })
		return
	}
	l, f := link.flying[dir][0].leg, link.flying[dir][0].frame
	link.flying[dir] = link.flying[dir][1:]
	switch {
	case link.silent, link.dead && l.torn[dir]:
		tunnel.ReleaseAll(f.data)
		return
	case link.dead:
		f = w.tear(l, dir, f)
	}
	if take := l.far[dir]; take != nil && f.kind != 0 {
		take(f)
	} else {
		tunnel.ReleaseAll(f.data)
	}
}

// tear is what still comes of a frame whose link was cut: all of it, or some of
// its bytes and then nothing more.
func (w *world) tear(l *leg, dir int, f frame) frame {
	if w.chance(50) {
		return f
	}
	l.torn[dir] = true
	if len(f.data) == 0 {
		return frame{}
	}
	n := w.rnd.IntN(f.data[0].Len() + 1)
	tunnel.ReleaseAll(f.data[1:])
	f.data[0] = f.data[0].Slice(0, n)
	f.data, f.fin = f.data[:1], false
	return f
}

// cut kills a link. Of what was under way some may still come.
func (w *world) cut(l *simLink) {
	if l.dead {
		return
	}
	l.dead = true
	for _, leg := range l.legs {
		for side := range leg.lost {
			w.after(w.upTo(2*time.Millisecond), func() { leg.hear(side) })
		}
	}
	l.legs = nil
}

// actor is an end of the connection and its application.
type actor struct {
	w     *world
	who   int
	m     Machine
	dead  bool
	bulk  bool // it writes much at a time
	total int  // to be written
	wrote int
	took  int
	told  uint64 // what the peer was told of that, and of its end

	leg     *leg    // the carrier; nil: none
	left    *leg    // the one before, which may still deliver
	unread  []frame // out of leg or left, not yet taken
	stalled bool
	trying  bool
	offers  []func() bool // carriers that wait until nothing comes out of the one before

	scarce bool // memory is, at this moment
	said   bool // the peer was told by leg that there is room for much
	heard  bool // and has told that itself
}

// mostText is more than an end ever writes.
const mostText = 1 << 20

// texts are what the ends write, as far as they get.
var texts = [2][]byte{text(opener), text(acceptor)}

func text(who int) []byte {
	b := make([]byte, mostText)
	for at := range b {
		b[at] = byte((uint32(at)*2654435761 + uint32(who)*97) >> 11)
	}
	return b
}

func (a *actor) now() time.Time { return a.w.time() }

// step settles what the machine says, and does it.
func (a *actor) step(acts Actions) Actions {
	acts = a.settle(acts)
	a.do(acts)
	return acts
}

func (a *actor) settle(acts Actions) Actions { return a.m.Settle(acts, a.now()) }

// do does what the machine says, and wants it to acknowledge in time.
func (a *actor) do(acts Actions) {
	if acts&Ack != 0 && a.leg != nil {
		a.tell()
	}
	if acts&AckSoon != 0 {
		a.w.after(quiet, func() { a.step(a.m.AckDue()) })
	}
	if acts&WatchDeadline != 0 {
		a.w.after(a.m.Deadline().Sub(a.now()), func() { a.step(a.m.DeadlineDue(a.now())) })
	}
	if acts&Detach != 0 {
		a.leave()
	}
	if acts&Dial != 0 {
		pause := a.m.Pause()
		a.resume(pause/2 + a.w.upTo(pause/2+20*time.Millisecond))
	}
	if acts&Finish != 0 {
		a.over()
	}
	if acts&Send != 0 {
		a.pump()
	}
	if acts&Wake != 0 {
		a.offers = slices.DeleteFunc(a.offers, func(again func() bool) bool { return again() })
	}
	a.knowsWhen()
}

// write has the application write something, if there is room.
func (a *actor) write() {
	if a.dead || a.m.err != nil || a.m.Over() || a.m.Closed() {
		return
	}
	if a.w.chance(2) {
		a.scarce = !a.scarce
	}
	if a.wrote == a.total {
		a.step(a.m.Written(true))
		return
	}
	pause := slowly
	if !a.m.Full(a.scarce) {
		c := tunnel.NewChunk(min(a.total-a.wrote, a.piece()))
		copy(c.Bytes(), texts[a.who][a.wrote:])
		a.wrote += c.Len()
		a.m.Out.Append(c)
		a.step(a.m.Written(false))
		pause = a.pause()
	} else {
		a.step(a.m.Blocked(a.scarce))
	}
	a.w.after(a.w.upTo(pause), a.write)
}

// slowly is how long most applications wait between two writes, at most.
const slowly = 20 * time.Millisecond

// pause is the same for this one.
func (a *actor) pause() time.Duration {
	if a.bulk {
		return slowly / 10
	}
	return slowly
}

// piece is how much it writes at a time.
func (a *actor) piece() int {
	switch {
	case a.bulk:
		return 1 + a.w.rnd.IntN(tunnel.ChunkSize)
	case a.w.chance(3):
		return 30000
	default:
		return 1 + a.w.rnd.IntN(400)
	}
}

// pump gives the carrier what it lacks, a part at a time, each of which takes a while.
func (a *actor) pump() {
	if !a.m.Up() || !a.m.Out.Unsent() {
		a.step(a.m.Sent())
		return
	}
	batch := make([]tunnel.Chunk, 1+a.w.rnd.IntN(3))
	n, fin := a.m.Out.Next(batch)
	a.w.send(a.leg, toServer, frame{kind: 'd', data: batch[:n], fin: fin})
	a.w.after(a.w.upTo(time.Millisecond), func() {
		a.m.Out.Given()
		a.pump()
	})
}

// carry makes l the carrier, and hears of its loss.
func (a *actor) carry(l *leg, epoch uint32) {
	if a.left != nil || a.leg != nil {
		a.w.fail("end %d: a carrier comes before the last is detached", a.who)
	}
	a.leg, l.epoch = l, epoch
	a.said, a.heard = false, false
	l.lost[toEnd] = func() {
		if !a.dead {
			a.step(a.m.CarrierLost(epoch, errLost, a.now()))
		}
	}
}

// leave detaches the carrier. For a while it may still deliver something.
func (a *actor) leave() {
	a.left, a.leg = a.leg, nil
	a.left.lost[toEnd] = nil
	a.w.send(a.left, toServer, frame{kind: 'r', code: tunnel.CodeLost})
	a.w.after(a.w.upTo(2*time.Millisecond), func() {
		if a.left != nil {
			a.drop(a.left)
			a.left = nil
			a.step(a.m.CarrierDetached())
		}
	})
}

// drop drops what came by l and was not taken.
func (a *actor) drop(l *leg) {
	l.far[toEnd], l.lost[toEnd] = nil, nil
	for _, f := range a.unread {
		tunnel.ReleaseAll(f.data)
	}
	a.unread = nil
}

// forsake drops what there is of carriers.
func (a *actor) forsake() {
	for _, l := range []*leg{a.leg, a.left} {
		if l != nil {
			a.drop(l)
		}
	}
	a.leg, a.left = nil, nil
}

// receive takes a frame off the carrier.
func (a *actor) receive(l *leg, f frame) {
	if a.dead || a.leg != l && a.left != l {
		tunnel.ReleaseAll(f.data)
		return
	}
	switch f.kind {
	case 'd':
		a.unread = append(a.unread, f)
		a.read()
	case 'a':
		if a.leg == l {
			a.heard = f.big
		}
		a.step(a.m.Acked(l.epoch, f.n, f.big, a.scarce))
		if a.m.life == Contradicted {
			a.w.fail("end %d: ack of %d", a.who, f.n)
		}
		if a.leg == l && a.m.Up() && a.said != a.m.hasMuch(a.scarce) {
			a.w.fail("end %d: the peer is not told whether there is room for much", a.who)
		}
	case 'r':
		a.step(a.m.CarrierLost(l.epoch, &tunnel.ResetError{Code: f.code}, a.now()))
		if a.leg == l && a.m.Up() {
			a.w.fail("end %d: reset %v left it attached", a.who, f.code)
		}
	}
}

// read has the application take what has come.
func (a *actor) read() {
	if a.stalled {
		return
	}
	if a.w.chance(4) {
		a.stalled = true
		a.w.after(a.w.upTo(300*time.Millisecond), func() { a.stalled = false; a.read() })
		return
	}
	for len(a.unread) > 0 {
		f, l := a.unread[0], a.leg
		if l == nil {
			l = a.left
		}
		a.unread = a.unread[1:]
		n := 0
		for _, c := range f.data {
			a.take(c.Bytes())
			n += c.Len()
		}
		tunnel.ReleaseAll(f.data)
		took := a.m.Took
		if a.w.chance(50) {
			took = a.m.ReadDone
			a.m.BeginRead()
		}
		a.step(took(l.epoch, n, f.fin))
	}
}

func (a *actor) take(p []byte) {
	if !bytes.HasPrefix(texts[1-a.who][a.took:], p) {
		a.w.fail("end %d took other bytes at %d", a.who, a.took)
	}
	if a.m.In.Finished() && len(p) > 0 {
		a.w.fail("end %d took bytes behind the end", a.who)
	}
	a.took += len(p)
}

// taken is how much of the sequence that is: the end counts as one more.
func (a *actor) taken() uint64 {
	if a.m.In.Finished() {
		return uint64(a.took) + 1
	}
	return uint64(a.took)
}

// knowsWhen wants the end to have told the peer at once what that may wait for: the end of
// the direction where the other has ended, too; 64 KiB, or 256 where the peer has said
// by this carrier that it keeps much.
func (a *actor) knowsWhen() {
	owed, step := a.taken()-a.told, uint64(64<<10)
	if a.heard {
		step = 256 << 10
	}
	if due := owed >= step || owed > 0 && a.m.In.Finished() && a.m.Out.Finished(); due && a.leg != nil && a.m.Up() {
		a.w.fail("end %d: %d bytes are taken and not acknowledged; the peer keeps much: %v", a.who, owed, a.heard)
	}
}

// tells takes in that the peer is told what was taken.
func (a *actor) tells(offset uint64) uint64 {
	if offset != a.taken() {
		a.w.fail("end %d has taken %d and acknowledges %d", a.who, a.taken(), offset)
	}
	a.told = offset
	return offset
}

// tell acknowledges.
func (a *actor) tell() {
	offset, _, big := a.m.Acknowledgement(a.scarce)
	a.said = big
	a.w.send(a.leg, toServer, frame{kind: 'a', n: a.tells(offset), big: big})
}

// over ends the carrier with the end, and tells the peer of it who does not know.
func (a *actor) over() {
	if leg := a.leg; leg != nil {
		reset := func(code tunnel.Code) { a.w.send(leg, toServer, frame{kind: 'r', code: code}) }
		switch life := a.m.life; {
		case life == Ended, life == Complete && a.m.In.Finished():
		case life == Complete:
			reset(tunnel.CodeCancelled)
		default:
			reset(a.m.ResetCode())
		}
	}
	a.forsake()
}

// resume has the opener try another carrier after a while, until it has one.
func (a *actor) resume(in time.Duration) {
	if a.who != opener || a.trying {
		return
	}
	a.trying = true
	a.w.after(in, func() { a.trying = false; a.try() })
}

func (a *actor) try() {
	for again := true; again; again = a.w.chance(10) { // another at once: the first may still win or come late
		if a.dead || a.step(a.m.Redial(a.now()))&refuses != 0 {
			return
		}
		a.w.open(a, a.m.epoch, a.tells(a.m.In.Tell()))
	}
	a.resume(50*time.Millisecond + a.w.upTo(1500*time.Millisecond)) // given up by then
}

// open asks for a carrier by one of the servers.
func (w *world) open(a *actor, epoch uint32, taken uint64) {
	s := w.servers[w.rnd.IntN(len(w.servers))]
	if s.links[opener] == nil {
		return
	}
	near := w.leg(s.links[opener])
	answered := false
	near.far[toEnd] = func(f frame) {
		if f.kind != 'O' && !answered {
			tunnel.ReleaseAll(f.data)
			return
		}
		if f.kind == 'O' {
			answered = true
			w.opened(a, near, f)
			return
		}
		a.receive(near, f)
	}
	w.after(50*time.Millisecond+w.upTo(1400*time.Millisecond), func() {
		if !answered { // the dial is given up
			near.far[toEnd] = nil
			w.send(near, toServer, frame{kind: 'r', code: tunnel.CodeCancelled})
		}
	})
	near.far[toServer] = func(f frame) { w.route(s, near, f) }
	w.send(near, toServer, frame{kind: 'o', n: taken, ep: epoch})
}

func (w *world) opened(a *actor, near *leg, f frame) {
	if a.dead {
		return
	}
	if f.fail != nil {
		if f.ep == a.m.epoch {
			a.step(a.m.RedialFailed(f.fail))
		}
		return
	}
	sent := a.m.Out.Sent()
	acts := a.settle(a.m.CarrierUp(f.ep, f.n, a.now()))
	switch {
	case acts&RefuseStale != 0:
		near.far[toEnd] = nil
		w.send(near, toServer, frame{kind: 'r', code: tunnel.CodeCancelled})
		return
	case acts&RefuseGone != 0: // which the peer is to know
		if acts&Finish != 0 && a.m.life == Contradicted {
			w.fail("resumed: the peer contradicts itself")
		}
		near.far[toEnd] = nil
		w.send(near, toServer, frame{kind: 'a', n: a.tells(a.m.In.Tell())})
		w.send(near, toServer, frame{kind: 'r', code: a.m.ResetCode()})
		a.do(acts)
		return
	}
	if now := a.m.Out.Sent(); now > sent {
		w.fail("resumed: goes on at %d where %d was sent", now, sent)
	}
	w.resumed++
	a.carry(near, f.ep)
	a.tell() // it uses the carrier
	a.do(acts)
	if near.torn[toEnd] || near.link.dead {
		near.hear(toEnd)
	}
}

func (w *world) leg(l *simLink) *leg {
	g := &leg{link: l}
	l.legs = append(l.legs, g)
	return g
}

// route is the server's part: it joins two legs and keeps nothing else.
func (w *world) route(s *server, near *leg, f frame) {
	if f.kind != 'o' {
		tunnel.ReleaseAll(f.data)
		return
	}
	if s.links[acceptor] == nil || near.link.dead {
		w.send(near, toEnd, frame{kind: 'O', ep: f.ep, fail: errors.New("no agent")})
		return
	}
	far := w.leg(s.links[acceptor])
	w.join(near, far)
	a := w.ends[acceptor]
	far.far[toEnd] = func(f frame) {
		if f.kind == 'o' {
			if !w.accept(a, far, f) {
				a.offers = append(a.offers, func() bool { return w.accept(a, far, f) })
			}
			return
		}
		if f.kind == 'r' && a.leg != far { // before it was answered
			far.torn[toEnd] = true
		}
		a.receive(far, f)
	}
	w.send(far, toEnd, f)
}

// join has two legs carry for each other until either is lost.
func (w *world) join(near, far *leg) {
	over := false
	pass := func(to *leg, dir int) func(frame) {
		return func(f frame) {
			if over {
				tunnel.ReleaseAll(f.data)
				return
			}
			w.send(to, dir, f)
		}
	}
	near.far[toServer] = pass(far, toEnd)
	far.far[toServer] = pass(near, toEnd)
	lost := func(other *leg) func() {
		return func() {
			if !over {
				over = true
				w.send(other, toEnd, frame{kind: 'r', code: tunnel.CodeLost})
			}
		}
	}
	near.lost[toServer], far.lost[toServer] = lost(far), lost(near)
}

// accept is the acceptor's answer to an OPEN that resumes. It returns false where that has to
// wait until nothing comes out of the carrier before.
func (w *world) accept(a *actor, far *leg, f frame) bool {
	if a.dead {
		return true
	}
	refuse := func(failure tunnel.Failure) bool {
		w.send(far, toServer, frame{kind: 'O', ep: f.ep, fail: &tunnel.DialError{Failure: failure}})
		return true
	}
	acts := a.settle(a.m.Offered(f.ep, f.n, a.now()))
	if acts&Finish != 0 && a.m.life == Contradicted {
		w.fail("accept: the peer contradicts itself")
	}
	a.do(acts &^ Wake)
	switch {
	case acts&RefuseStale != 0:
		return refuse(tunnel.FailStale)
	case acts&RefuseGone != 0:
		return refuse(tunnel.FailGone)
	case acts&Answer == 0:
		return false
	}
	a.tells(a.m.In.Tell())
	if far.torn[toEnd] || far.link.dead { // the opener cannot be told
		a.do(a.settle(a.m.CarrierLost(f.ep, errLost, a.now())) &^ Wake)
		return true
	}
	w.send(far, toServer, frame{kind: 'O', ep: f.ep, n: a.taken()})
	acts = a.settle(a.m.CarrierUp(f.ep, 0, a.now()))
	switch {
	case acts&refuses == 0:
		a.carry(far, f.ep)
	case a.m.life == Complete: // the opener may still write
		w.send(far, toServer, frame{kind: 'r', code: tunnel.CodeCancelled})
	case a.m.life == Ended:
		w.send(far, toServer, frame{kind: 'r', code: a.m.ResetCode()})
	}
	if w.now < w.spite && a.leg == far { // nothing goes by it either way
		w.spited++
		far.far[toEnd] = nil
		acts = acts&^Ack | a.settle(a.m.CarrierLost(f.ep, errLost, a.now()))
		w.after(0, func() { a.do(acts &^ Wake) })
		return true
	}
	a.do(acts &^ Wake)
	return true
}
