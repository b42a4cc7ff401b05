//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

const (
	// handoverBatch is how many connections go from one agent to the next at a time, and
	// handoverBytes how many bytes they keep when no other is added. They stand still
	// meanwhile, as does the batch behind them, and both agents have their bytes.
	handoverBatch = 64
	handoverBytes = 1 << 20

	// handoverReturn is the part of the memory budget, one in handoverReturn, whose worth of
	// bytes goes to the next agent before this one gives its memory back to the system:
	// both have them otherwise until this one ends.
	handoverReturn = 20

	// handoverReady bounds how long a holder that was told to stop waits for its successor
	// to have a server.
	handoverReady = 5 * time.Second

	// refusedAgain is the interval at which one reason for refusing successors is warned of.
	refusedAgain = time.Minute
)

// successor is the agent after this one, as its holder sees it.
type successor struct {
	wire
	said  chan string // the kinds of its messages; closed with the connection
	line  *os.File    // the life line's write end; nil: it is not welcome
	ready bool        // it can take connections; for give
	over  bool        // it gets none, or no more; for give
}

// hold waits for successors until ctx ends. One at a time is served. Those that are connected
// by then stay, for give.
func (h *Handover) hold(ctx context.Context, socket net.Listener) {
	successors := admission.Acceptor{What: "successors", Log: h.log}
	err := successors.Run(ctx, socket, func(c net.Conn) {
		h.running.Go(func() { h.welcome(&successor{wire: wire{c.(*net.UnixConn)}, said: make(chan string, 1)}) })
	})
	if err != nil && !errors.Is(err, net.ErrClosed) {
		h.log.WithError(err).Warn("no successor is accepted any more: this agent's connections will end with it")
	}
}

// welcome introduces this agent to its successor, and reads what that says until it hangs
// up.
func (h *Handover) welcome(s *successor) {
	defer s.conn.Close()
	defer close(s.said)
	if !h.enter(s) {
		return
	}
	defer h.forget(s)
	switch err := h.admit(s); {
	case errors.Is(err, io.EOF): // it looked whether the path is served
		return
	case err != nil:
		_ = s.send(message{Kind: msgRefused, Reason: err.Error()}, -1)
		h.refused(err)
		return
	}
	h.log.Info("a successor has come for the connections of this agent")
	for {
		m, err := s.receive(time.Time{})
		if err != nil {
			return
		}
		if m.closeFile(); m.Kind == msgPorts {
			h.yield()
			if err := s.send(message{Kind: msgYielded}, -1); err != nil {
				return
			}
			continue
		}
		select {
		case s.said <- m.Kind:
		default: // it has not waited for an answer
			return
		}
	}
}

// refused logs why a successor was refused, which asks again and again: once a minute, or
// as the reason changes.
func (h *Handover) refused(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.log.WithError(err)
	if err.Error() == h.refusal && time.Since(h.refusedAt) < refusedAgain {
		log.Debug("refused a successor")
		return
	}
	h.refusal, h.refusedAt = err.Error(), time.Now()
	log.Warn("refused a successor")
}

// admit checks a peer's user, version, id and servers, and makes it the successor.
func (h *Handover) admit(s *successor) error {
	if err := sameUser(s.conn); err != nil {
		return err
	}
	m, err := s.receive(time.Now().Add(handoverTimeout))
	m.closeFile()
	switch {
	case err != nil:
		return err
	case m.Kind != msgHello || m.Version != handoverVersion:
		return fmt.Errorf("this agent speaks version %d of the hand-over, the other one %d", handoverVersion, m.Version)
	case m.ID != "" && m.ID != h.id:
		return fmt.Errorf("this agent's id is %q, the other one's %q: give both the same --agent-id", h.id, m.ID)
	case !slices.Equal(m.Servers, h.servers):
		return fmt.Errorf("this agent is for servers %q, the other one for %q", h.servers, m.Servers)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.next != nil || h.left {
		return errors.New("this agent has a successor already")
	}
	life, line, err := os.Pipe()
	if err != nil {
		return err
	}
	defer life.Close()
	h.lines = append(h.lines, line)
	h.next, s.line = s, line
	return s.send(message{Kind: msgWelcome, Version: handoverVersion, ID: h.id}, int(life.Fd()))
}

// enter notes that s is connected. It returns false where it is too late for that.
func (h *Handover) enter(s *successor) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.left {
		h.open[s] = true
	}
	return !h.left
}

// forget notes that s has hung up. An agent that goes on needs its ports again.
func (h *Handover) forget(s *successor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, s)
	if h.next != s {
		return
	}
	h.next = nil
	if n := slices.Index(h.lines, s.line); n >= 0 && !h.giving { // it was offered nothing
		h.lines = slices.Delete(h.lines, n, n+1)
		_ = s.line.Close()
	}
	if h.yielded && !h.giving {
		h.yielded = false
		for _, p := range h.ports {
			p.Reclaim()
		}
	}
}

// yield frees the ports for the successor, which answers at them for both.
func (h *Handover) yield() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.yielded = true
	for _, p := range h.ports {
		p.Yield()
	}
}

// give hands all connections to the successor, if there is one that is ready. Those that it
// does not take stay. A draining agent calls it again and again: a dial may become a
// connection meanwhile, and a successor may have come just before.
func (h *Handover) give(a *Agent) {
	if h == nil {
		return
	}
	h.mu.Lock()
	s := h.next
	h.giving = true
	h.mu.Unlock()
	if s == nil || s.over {
		return
	}
	if movable, _ := a.ends.Movable(); movable == 0 {
		return
	}
	if !s.ready {
		if err := s.hear(msgReady, handoverReady); err != nil {
			s.over = true
			h.log.WithError(err).Warn("the successor is not ready: nothing is handed over")
			return
		}
		s.ready = true
		a.ends.SetHandingOver(true)
	}
	n, err := s.giveAll(a)
	log := h.log.WithField("connections", n)
	switch {
	case err != nil:
		s.over = true
		a.ends.SetHandingOver(false)
		log.WithError(err).Warn("not all connections were handed over")
	case n > 0:
		log.Info("handed over the connections of this agent")
	}
}

// finish tells the successor that it has all that it gets.
func (h *Handover) finish() {
	if h == nil {
		return
	}
	h.mu.Lock()
	s := h.next
	h.mu.Unlock()
	if s != nil && !s.over {
		_ = s.send(message{Kind: msgDone}, -1)
	}
}

// giveAll gives batch after batch, and returns how many connections the successor has. While
// that takes one batch, the next is taken out of use.
func (s *successor) giveAll(a *Agent) (n int, err error) {
	moves := a.ends.Moves()
	next := func() <-chan []*resume.Move {
		c := make(chan []*resume.Move, 1)
		go func() { c <- moves.Next(handoverBatch, handoverBytes) }()
		return c
	}
	gone := 0 // bytes that connections kept, since their memory was given back
	for batch := <-next(); len(batch) > 0; {
		following := next()
		if err = s.offer(batch); err != nil {
			_, _ = s.line.Write([]byte{0}) // before the connection ends: this process lives, and keeps them
			_ = s.conn.Close()
			for _, m := range append(batch, <-following...) {
				_ = m.Undo(a.serve)
			}
			return n, err
		}
		for _, m := range batch {
			gone += tunnel.LenAll(m.Kept)
			m.Done()
		}
		if n += len(batch); int64(gone) > a.opts.Budget.Max()/handoverReturn {
			gone = 0
			debug.FreeOSMemory()
		}
		batch = <-following
	}
	return n, nil
}

// offer gives one batch. With an error it stays this agent's: the successor then has read no
// confirmation, and the life line says that this process lives.
func (s *successor) offer(batch []*resume.Move) error {
	for _, m := range batch {
		if err := s.offerOne(m); err != nil {
			return err
		}
	}
	if err := s.send(message{Kind: msgEnd}, -1); err != nil {
		return err
	}
	if err := s.hear(msgTaken, handoverTimeout); err != nil {
		return err
	}
	return s.send(message{Kind: msgConfirm}, -1)
}

func (s *successor) offerOne(m *resume.Move) error {
	offer := message{Kind: msgOffer, Conn: &m.Snapshot}
	if m.Left {
		return s.send(offer, -1)
	}
	var sent error
	if err := m.Socket.Control(func(fd uintptr) { sent = s.send(offer, int(fd)) }); err != nil {
		return err
	}
	return sent
}

// hear waits for the message of that kind.
func (s *successor) hear(kind string, atMost time.Duration) error {
	late := make(chan struct{})
	defer wait.Awake(atMost, func() { close(late) })()
	for {
		select {
		case said, ok := <-s.said:
			if !ok {
				return errors.New("the successor has hung up")
			}
			if said == kind {
				return nil
			}
		case <-late:
			return fmt.Errorf("the successor has not said %q within %v", kind, atMost)
		}
	}
}
