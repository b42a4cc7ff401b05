package resume

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"konnectivity/tunnel"
)

// The simulation: two ends, one to three servers between them, links that are
// cut at any byte, stand still and come back, servers that are killed, carriers
// that are tried twice at once, readers that stall, ends that keep much or little,
// become plain, lie, are closed or given up or die, and windows that pass; all in
// virtual time and from one seed. The oracle is that what an end takes is what the
// other wrote, byte by byte, that both have all of it in the end if both live and
// a carrier came back in time, and that an end is to acknowledge at once just
// where the protocol says so.

// world is one run.
type world struct {
	rnd   *rand.Rand
	now   time.Duration
	queue events
	seq   uint64
	tally
	failed error

	ends    [2]*actor
	servers []*server
	healing bool // no more faults
	deadly  bool // something happens that connections cannot outlive
	down    bool // no link returns
}

const opener, acceptor = 0, 1

// epochStart gives virtual time a date.
var epochStart = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) time() time.Time { return epochStart.Add(w.now) }

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now + d, w.seq, do})
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
	link *simLink
	far  [2]func(frame) // who takes what is sent to the end and to the server
	lost [2]func()      // who hears that the link has died
	torn [2]bool        // nothing more comes
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
	end   *End
	dead  bool
	bulk  bool // it writes much at a time
	total int  // to be written
	wrote int
	took  int
	told  uint64 // what the peer was told of that, and of its end

	leg     *leg
	epoch   uint32  // that leg carries
	unread  []frame // out of leg, not yet taken
	stalled bool
	pumping bool
	owing   bool
	trying  bool

	keeps bool // it has room for much, at this moment,
	said  bool // and has said so by leg;
	heard bool // the peer has
}

// mostText is more than an end ever writes.
const mostText = 1 << 20

// texts are what the ends write, as far as they get.
var texts = [2][]byte{text(opener), text(acceptor)}

func text(who int) []byte {
	b := make([]byte, mostText)
	for at := range b {
		b[at] = byte((at*2654435761 + who*97) >> 11)
	}
	return b
}

func (a *actor) now() time.Time { return a.w.time() }

// What an end keeps at most, and what one keeps that has said that it keeps much.
const (
	littleRoom = 128 << 10
	muchRoom   = 512 << 10
)

func (a *actor) room() int {
	if a.keeps && a.leg != nil {
		return muchRoom
	}
	return littleRoom
}

// write has the application write something, if there is room.
func (a *actor) write() {
	if a.dead || a.end.Reason() != NotGone || a.end.Closed() || a.end.Abandoned() {
		return
	}
	if a.w.chance(2) {
		a.keeps = !a.keeps
	}
	if a.wrote == a.total {
		a.end.Out.Finish()
		if a.leg != nil && a.end.Carried() {
			a.acknowledge()
		}
		a.pump()
		a.settle()
		return
	}
	pause := slowly
	if a.end.Out.Kept() < a.room() {
		c := tunnel.NewChunk(min(a.total-a.wrote, a.piece()))
		copy(c.Bytes(), texts[a.who][a.wrote:])
		a.wrote += c.Len()
		a.end.Out.Append(c)
		a.pump()
		pause = a.pause()
	} else if a.leg != nil && a.said && !a.keeps {
		a.tell() // so that the peer does so sooner
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

// pump gives the carrier what it has not been given, a part at a time.
func (a *actor) pump() {
	if a.pumping || a.leg == nil || !a.end.Carried() || !a.end.Out.Unsent() {
		return
	}
	a.pumping = true
	leg := a.leg
	a.w.after(a.w.upTo(time.Millisecond), func() {
		a.pumping = false
		if a.leg != leg || !a.end.Carried() {
			a.pump()
			return
		}
		batch := make([]tunnel.Chunk, 1+a.w.rnd.IntN(3))
		n, fin := a.end.Out.Next(batch)
		a.w.send(leg, toServer, frame{kind: 'd', data: batch[:n], fin: fin})
		a.end.Out.Given()
		a.settle()
		a.pump()
	})
}

// attach makes leg the carrier.
func (a *actor) attach(l *leg, epoch uint32) {
	a.detach()
	a.leg, a.epoch = l, epoch
	a.owing, a.said, a.heard = false, false, false
}

// carry attaches l and hears of its loss.
func (a *actor) carry(l *leg, epoch uint32) {
	a.attach(l, epoch)
	l.lost[toEnd] = func() {
		if a.leg == l && !a.dead {
			a.broken(tunnel.CodeLost)
		}
	}
}

// detach drops what came by the carrier and was not taken.
func (a *actor) detach() {
	if a.leg != nil {
		a.leg.far[toEnd], a.leg.lost[toEnd] = nil, nil
	}
	for _, f := range a.unread {
		tunnel.ReleaseAll(f.data)
	}
	a.leg, a.unread = nil, nil
}

// receive takes a frame off the carrier.
func (a *actor) receive(l *leg, f frame) {
	if a.dead || a.leg != l {
		tunnel.ReleaseAll(f.data)
		return
	}
	switch f.kind {
	case 'd':
		a.end.Heard(a.epoch)
		a.unread = append(a.unread, f)
		a.read()
	case 'a':
		a.end.Heard(a.epoch)
		if err := a.end.Ack(f.n, a.now()); err != nil {
			a.w.fail("end %d: ack of %d: %v", a.who, f.n, err)
		}
		a.heard = f.big
		a.end.In.Keeps(f.big)
		a.knowsWhen()
		if a.end.Carried() && (a.end.Due() || a.said != a.keeps) {
			a.tell()
		}
		a.settle()
		a.pump()
	case 'r':
		a.broken(f.code)
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
		f := a.unread[0]
		a.unread = a.unread[1:]
		for _, c := range f.data {
			a.take(c.Bytes())
		}
		tunnel.ReleaseAll(f.data)
		if f.fin {
			a.end.In.Finish()
		}
	}
	a.unread = nil
	a.acknowledge()
	a.settle()
}

func (a *actor) take(p []byte) {
	if !bytes.HasPrefix(texts[1-a.who][a.took:], p) {
		a.w.fail("end %d took other bytes at %d", a.who, a.took)
	}
	if a.end.In.Finished() && len(p) > 0 {
		a.w.fail("end %d took bytes behind the end", a.who)
	}
	a.took += len(p)
	a.end.In.Take(len(p))
}

// taken is how much of the sequence that is: the end counts as one more.
func (a *actor) taken() uint64 {
	if a.end.In.Finished() {
		return uint64(a.took) + 1
	}
	return uint64(a.took)
}

// knowsWhen wants the end to know whether the peer is to be told at once: the end of
// the direction where the other has ended, too; 64 KiB, or 256 where the peer has said
// by this carrier that it keeps much.
func (a *actor) knowsWhen() {
	owed, step := a.taken()-a.told, uint64(64<<10)
	if a.heard {
		step = 256 << 10
	}
	if due := owed >= step || owed > 0 && a.end.In.Finished() && a.end.Out.Finished(); due != a.end.Due() {
		a.w.fail("end %d: %d bytes are taken and not acknowledged; the peer keeps much: %v; due: %v", a.who, owed, a.heard, !due)
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
	a.said = a.keeps
	a.w.send(a.leg, toServer, frame{kind: 'a', n: a.tells(a.end.In.Tell()), big: a.said})
}

// acknowledge tells the peer at once, or soon.
func (a *actor) acknowledge() {
	a.knowsWhen()
	switch {
	case a.leg == nil || !a.end.Carried() || !a.end.In.Owes():
	case a.end.Due():
		a.tell()
	case !a.owing:
		a.owing = true
		leg := a.leg
		a.w.after(100*time.Millisecond, func() {
			if a.leg == leg {
				a.owing = false
				if a.end.Carried() && a.end.In.Owes() {
					a.tell()
				}
			}
		})
	}
}

// settle looks at what has become of the end.
func (a *actor) settle() {
	a.end.Settle(a.now())
	if a.over() {
		return
	}
	if at := a.end.Deadline(); !at.IsZero() {
		a.w.after(at.Sub(a.now()), func() { a.end.Tick(a.now()); a.over() })
	}
}

// over says whether the end is gone. Its carrier is over, too, then, and tells the
// peer of it who does not know.
func (a *actor) over() bool {
	reason := a.end.Reason()
	if reason == NotGone {
		return false
	}
	if leg := a.leg; leg != nil {
		reset := func(code tunnel.Code) { a.w.send(leg, toServer, frame{kind: 'r', code: code}) }
		switch {
		case reason == Ended, reason == Complete && a.end.In.Finished():
		case reason == Complete:
			reset(tunnel.CodeCancelled)
		case reason == Dishonest:
			reset(tunnel.CodeProtocol)
		default:
			reset(tunnel.CodeGone)
		}
	}
	a.detach()
	return true
}

func (a *actor) broken(code tunnel.Code) {
	a.end.Broken(a.epoch, code, a.now())
	if a.end.Carried() {
		a.w.fail("end %d: reset %v left it attached", a.who, code)
	}
	a.detach()
	a.settle()
	a.resume(a.w.upTo(20 * time.Millisecond))
}

// resume has the opener try another carrier after a while.
func (a *actor) resume(in time.Duration) {
	if a.who != opener || a.trying {
		return
	}
	a.trying = true
	a.w.after(in, func() { a.trying = false; a.try() })
}

func (a *actor) try() {
	if !a.dead && a.end.Reason() == NotGone && !a.end.Carried() {
		a.move()
	}
}

// move leaves the carrier, if there is one, for another.
func (a *actor) move() {
	a.detach()
	epoch, taken, err := a.end.Try(a.now())
	if err != nil {
		a.w.fail("try: %v", err)
		return
	}
	a.settle()
	a.w.open(a, epoch, a.tells(taken))
	if a.w.chance(10) { // another at once: the first may still win or come late
		a.w.faults++
		if epoch, taken, err = a.end.Try(a.now()); err == nil {
			a.w.open(a, epoch, a.tells(taken))
		}
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
	switch {
	case errors.Is(f.fail, ErrGone) && f.ep == a.end.Epoch():
		a.end.End(Unknown)
		a.settle()
		return
	case f.fail != nil:
		return
	}
	sent := a.end.Out.Sent()
	switch err := a.end.Resumed(f.ep, f.n, w.time()); {
	case err == nil:
	case errors.Is(err, ErrStale):
		near.far[toEnd] = nil
		w.send(near, toServer, frame{kind: 'r', code: tunnel.CodeCancelled})
		return
	case errors.Is(err, ErrGone): // which the peer is to know
		near.far[toEnd] = nil
		w.send(near, toServer, frame{kind: 'a', n: a.tells(a.end.In.Tell())})
		w.send(near, toServer, frame{kind: 'r', code: tunnel.CodeGone})
		return
	default:
		w.fail("resumed: %v", err)
		return
	}
	if now := a.end.Out.Sent(); now > sent {
		w.fail("resumed: goes on at %d where %d was sent", now, sent)
	}
	w.resumed++
	a.carry(near, f.ep)
	if near.torn[toEnd] || near.link.dead {
		near.hear(toEnd)
		return
	}
	a.tell() // it uses the carrier
	a.settle()
	a.pump()
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
			w.accept(a, far, f)
			return
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

// accept is the acceptor's answer to an OPEN that resumes.
func (w *world) accept(a *actor, far *leg, f frame) {
	if a.dead {
		return
	}
	if a.end.Reason() == NotGone && f.ep > a.end.Epoch() {
		a.detach() // so that no more is taken out of it
	}
	taken, err := a.end.Accept(f.ep, f.n, w.time())
	if err != nil {
		if !errors.Is(err, ErrStale) && !errors.Is(err, ErrGone) {
			w.fail("accept: %v", err)
		}
		w.send(far, toServer, frame{kind: 'O', ep: f.ep, fail: err})
		return
	}
	a.tells(taken)
	a.carry(far, f.ep)
	if far.torn[toEnd] || far.link.dead {
		far.hear(toEnd)
		return
	}
	w.send(far, toServer, frame{kind: 'O', ep: f.ep, n: taken})
	a.settle()
	a.pump()
}
