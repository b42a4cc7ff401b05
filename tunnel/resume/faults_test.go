package resume

import (
	"container/heap"
	"errors"
	"math/rand/v2"
	"time"

	"konnectivity/tunnel"
)

const (
	// simWindow is longer than it takes to notice silence, and than faults
	// take to heal.
	simWindow = 60 * time.Second
	liveness  = 20 * time.Second
)

// tally is what has happened in runs.
type tally struct{ runs, faults, resumed int }

func (t *tally) add(o tally) {
	t.runs, t.faults, t.resumed = t.runs+o.runs, t.faults+o.faults, t.resumed+o.resumed
}

// simulate is one run from a seed.
func simulate(seed uint64) (done tally, err error) {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 0)), tally: tally{runs: 1}}
	for range 1 + w.rnd.IntN(3) {
		w.servers = append(w.servers, &server{links: [2]*simLink{{}, {}}})
	}
	for who := range w.ends {
		total := w.rnd.IntN(100 << 10)
		if w.chance(10) {
			total *= 10
		}
		w.ends[who] = &actor{w: w, who: who, end: New(simWindow), total: total}
	}
	w.start()
	for _, a := range w.ends {
		w.after(0, a.write)
	}
	w.after(w.upTo(30*time.Millisecond), w.fault)
	w.after(500*time.Millisecond+w.upTo(5*time.Second), func() { w.healing = true })
	if w.chance(5) {
		w.after(w.upTo(4*time.Second), w.doom)
	}
	w.run()
	return w.tally, w.failed
}

// start attaches both ends to their first carrier.
func (w *world) start() {
	near, far := w.leg(w.servers[0].links[opener]), w.leg(w.servers[0].links[acceptor])
	w.join(near, far)
	for who, l := range []*leg{near, far} {
		a := w.ends[who]
		l.far[toEnd] = func(f frame) { a.receive(l, f) }
		a.carry(l, 0)
	}
}

// run handles events until there are none.
func (w *world) run() {
	for len(w.queue) > 0 && w.failed == nil {
		e := heap.Pop(&w.queue).(event)
		if w.now = e.at; w.now > 2*stillTime {
			w.fail("it does not come to an end: opener %v, acceptor %v", w.ends[opener].end.State(), w.ends[acceptor].end.State())
		}
		e.do()
	}
	for _, a := range w.ends {
		w.judge(a)
	}
}

// judge is the oracle for how an end ended. That what it took was a prefix of
// what the other wrote was looked at byte by byte.
func (w *world) judge(a *actor) {
	other := w.ends[1-a.who]
	switch {
	case w.failed != nil || a.dead:
	case a.end.Reason() == NotGone:
		w.fail("end %d is still %v, the other %v", a.who, a.end.State(), other.end.State())
	case a.end.Out.Size() != 0:
		w.fail("end %d is gone and holds %d bytes", a.who, a.end.Out.Size())
	case w.deadly:
	case a.took != other.total || !a.end.In.Finished():
		w.fail("end %d took %d of %d bytes; it is gone for %q, the other for %q",
			a.who, a.took, other.total, a.end.Reason().Label(), other.end.Reason().Label())
	}
}

// doom makes the end of a run one that connections cannot outlive.
func (w *world) doom() {
	w.deadly, w.healing = true, true
	switch w.rnd.IntN(3) {
	case 0: // an end dies
		a := w.ends[w.rnd.IntN(2)]
		a.dead = true
		a.detach()
		a.end.End(Ended)
		for _, s := range w.servers {
			if l := s.links[a.who]; l != nil {
				w.cut(l)
			}
			s.links[a.who] = nil
		}
	case 1: // one of them ends the connection
		a := w.ends[w.rnd.IntN(2)]
		if a.leg != nil {
			w.send(a.leg, toServer, frame{kind: 'r', code: tunnel.CodePeerReset})
		}
		a.end.End(Ended)
		a.detach()
	case 2: // nobody is linked any more
		for _, s := range w.servers {
			for i, l := range s.links {
				if l != nil {
					w.cut(l)
				}
				s.links[i] = nil
			}
		}
	}
}

// fault makes something happen, and the next thing follow.
func (w *world) fault() {
	if w.healing || w.ends[opener].end.Reason() != NotGone && w.ends[acceptor].end.Reason() != NotGone {
		return
	}
	s := w.servers[w.rnd.IntN(len(w.servers))]
	side := w.rnd.IntN(2)
	switch n := w.rnd.IntN(100); {
	case n < 55:
		w.cutSide(s, side, w.upTo(300*time.Millisecond))
	case n < 70: // the server dies
		back := w.upTo(time.Second)
		w.cutSide(s, 0, back+w.upTo(500*time.Millisecond))
		w.cutSide(s, 1, back+w.upTo(500*time.Millisecond))
	case n < 80:
		if l := s.links[side]; l != nil {
			w.faults++
			l.until = w.now + w.upTo(500*time.Millisecond)
		}
	case n < 82:
		w.hush(s, side)
	case n < 92: // the server drains
		if a := w.ends[opener]; a.end.Carried() {
			w.faults++
			w.send(a.leg, toServer, frame{kind: 'r', code: tunnel.CodeShutdown})
			a.move()
		}
	default:
		w.forge()
	}
	w.after(w.upTo(150*time.Millisecond), w.fault)
}

// cutSide cuts a link, which is there again after a while.
func (w *world) cutSide(s *server, side int, down time.Duration) {
	l := s.links[side]
	if l == nil {
		return
	}
	w.faults++
	w.cut(l)
	s.links[side] = nil
	w.after(down, func() { w.restore(s, side) })
}

func (w *world) restore(s *server, side int) {
	if !w.ends[side].dead && !w.deadly && s.links[side] == nil {
		s.links[side] = &simLink{}
	}
}

// hush lets nothing through any more, which each side notices in its time.
func (w *world) hush(s *server, side int) {
	l := s.links[side]
	if l == nil || l.silent {
		return
	}
	w.faults++
	l.silent = true
	for dir := range 2 {
		w.after(liveness*3/4+w.upTo(liveness/4), func() {
			for _, leg := range l.legs {
				leg.hear(dir)
			}
			if s.links[side] == l {
				s.links[side] = nil
				w.after(w.upTo(300*time.Millisecond), func() { w.restore(s, side) })
			}
		})
	}
}

// forge presents the acceptor with carriers that are old or lie; none of it may
// leave a trace. One that lies under a new number ends the connection, which is
// a test of its own.
func (w *world) forge() {
	e := w.ends[acceptor].end
	if e.Reason() != NotGone {
		return
	}
	w.faults++
	before, carried := e.Epoch(), e.Carried()
	for range 3 {
		_, err := e.Accept(e.Epoch()-min(e.Epoch(), w.rnd.Uint32N(3)), w.rnd.Uint64N(1<<20), w.time())
		if !errors.Is(err, ErrStale) {
			w.fail("a carrier of before was answered %v", err)
		}
	}
	e.Heard(e.Epoch() + 1)
	e.Broken(e.Epoch()+1, tunnel.CodeLost, w.time())
	if e.Epoch() != before || e.Carried() != carried {
		w.fail("a forged carrier left a trace")
	}
}
