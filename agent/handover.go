//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"konnectivity/agent/egress"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

const (
	// handoverBatch is how many connections go from one agent to the next at a time. They
	// stand still meanwhile, and both agents have their bytes.
	handoverBatch = 16

	// handoverDial bounds the wait for the agent before at the start.
	handoverDial = 2 * time.Second

	// handoverReady bounds how long a holder that was told to stop waits for its successor
	// to have a server.
	handoverReady = 5 * time.Second

	// handoverPoll is the interval at which an agent looks whether it is ready, whether the
	// one before has freed the socket's path, and whether it is to stop.
	handoverPoll = 200 * time.Millisecond

	// deathTime bounds the wait for a holder's life line to end, once its connection has:
	// the kernel closes a process's descriptors one after the other.
	deathTime = time.Second
)

// Handover passes connections from one agent to the next on the same node
// (docs/handover.md). An agent is a successor first, if another agent holds the socket's
// path, and a holder afterwards. A nil Handover does nothing.
type Handover struct {
	path    string
	id      string
	servers []string
	log     logrus.FieldLogger

	before *holder // the agent before; nil: there was none
	socket net.Listener

	running sync.WaitGroup

	mu     sync.Mutex
	open   map[*successor]bool // those that are connected
	next   *successor          // the one to give to, of those in open; nil: none
	lines  []*os.File          // write ends of life lines, which the end of this process closes
	giving bool                // the time has come for next
	left   bool                // no other is admitted
}

// holder is the agent before, as its successor sees it.
type holder struct {
	wire
	life *os.File // ends with the process
}

// OpenHandover finds the agent that holds path, or holds it itself. Only an agent with the
// same id and servers is succeeded; id may be "": then it is that of the agent before. It
// blocks for some seconds at most.
func OpenHandover(path, id string, servers []string, log logrus.FieldLogger) (*Handover, error) {
	h := &Handover{path: path, id: id, servers: servers, log: log.WithField("socket", path), open: map[*successor]bool{}}
	if c, err := net.DialTimeout("unix", path, handoverDial); err == nil {
		if err := h.greet(wire{c.(*net.UnixConn)}); err != nil {
			_ = c.Close()
			h.log.WithError(err).Warn("the agent that holds the hand-over socket hands nothing over; it drains as if there were no socket")
		}
		return h, nil
	}
	if err := h.listen(); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Handover) listen() (err error) {
	h.socket, err = unixsocket.Listen(h.path, unixsocket.Options{Replace: true, Mode: 0o600})
	return err
}

// ID returns the id of the agent before, or that of OpenHandover; "" without either.
func (h *Handover) ID() string {
	if h == nil {
		return ""
	}
	return h.id
}

// setID tells which id this agent has.
func (h *Handover) setID(id string) {
	if h != nil {
		h.id = id
	}
}

// greet introduces this agent to the one before.
func (h *Handover) greet(w wire) error {
	if err := sameUser(w.conn); err != nil {
		return err
	}
	if err := w.send(message{Kind: msgHello, Version: handoverVersion, ID: h.id, Servers: h.servers}, -1); err != nil {
		return err
	}
	m, err := w.receive(time.Now().Add(handoverDial))
	switch {
	case err != nil:
		return err
	case m.Kind == msgRefused:
		return errors.New(m.Reason)
	case m.Kind != msgWelcome || m.file == nil:
		return errors.New("it gave no answer that this version knows")
	}
	h.id = m.ID
	h.before = &holder{w, m.file}
	return nil
}

// start serves the hand-over until ctx ends: it takes what the agent before has, and waits
// for the next. stop joins it, and is called when nothing is left to give.
func (h *Handover) start(ctx context.Context, a *Agent) (stop func()) {
	if h == nil {
		return func() {}
	}
	if h.before != nil {
		a.ends.SetHandingOver(true) // before a server can ask
	}
	h.running.Go(func() {
		if h.before != nil {
			h.succeed(ctx, a)
		}
		h.hold(ctx)
	})
	return func() {
		h.leave()
		h.running.Wait()
		for _, line := range h.lines {
			_ = line.Close()
		}
	}
}

// leave frees the path, and hangs up on all that are connected.
func (h *Handover) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.socket != nil {
		_ = h.socket.Close()
	}
	h.left = true
	for s := range h.open {
		_ = s.conn.Close()
	}
}

// succeed takes over connections until the agent before has none, or is gone.
func (h *Handover) succeed(ctx context.Context, a *Agent) {
	n, err := h.take(ctx, a)
	h.running.Go(func() { // until then it may have connections that were not handed over
		for ctx.Err() == nil && !h.before.ends(handoverPoll) {
		}
		_ = h.before.life.Close()
		_ = h.before.conn.Close()
		a.ends.SetHandingOver(false)
	})
	log := h.log.WithField("connections", n)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.WithError(err).Warn("the agent before ended before it had handed over all")
	default:
		log.Info("took over the connections of the agent before")
	}
}

// take receives batches, and returns how many connections this agent has taken over.
func (h *Handover) take(ctx context.Context, a *Agent) (n int, err error) {
	var batch []message
	adopt := func() {
		for _, m := range batch {
			if err := a.ends.Adopt(*m.Conn, m.far, a.serve); err != nil {
				h.log.WithError(err).Debug("a connection that was handed over has ended")
				continue
			}
			n++
		}
		batch = nil
	}
	defer func() {
		if len(batch) > 0 && h.before.dead() { // no other process has them
			adopt()
		}
		for _, m := range batch {
			if m.far != nil {
				_ = m.far.Close()
			}
		}
	}()
	ready, heard := false, time.Now()
	for {
		if !ready && a.canResume() {
			if ready, err = true, h.before.send(message{Kind: msgReady}, -1); err != nil {
				return n, err
			}
		}
		m, err := h.before.receive(time.Now().Add(handoverPoll))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && (ctx.Err() == nil || len(batch) > 0 && time.Since(heard) < handoverTimeout):
			continue
		case err != nil:
			return n, err
		}
		heard = time.Now()
		switch m.Kind {
		case msgOffer:
			if err = m.open(); err == nil && len(batch) == handoverBatch {
				err = errors.New("more connections than a batch has")
			}
			batch = append(batch, m)
		case msgEnd:
			err = h.before.send(message{Kind: msgTaken}, -1)
		case msgConfirm:
			adopt()
		case msgDone:
			return n, nil
		default:
			err = fmt.Errorf("it says %q, which this version does not know", m.Kind)
		}
		if err != nil {
			return n, err
		}
	}
}

// dead reports whether the holder's process is gone, and not just its connection. One that
// has kept the batch has said so on the life line.
func (b *holder) dead() bool {
	_ = b.conn.Close()
	if !b.ends(deathTime) {
		return false
	}
	n, err := unix.Read(int(b.life.Fd()), make([]byte, 1))
	return n == 0 && err == nil
}

// ends waits until the life line ends, or says something, and returns false where neither
// happens within that time.
func (b *holder) ends(within time.Duration) bool {
	poll := []unix.PollFd{{Fd: int32(b.life.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(within/time.Millisecond))
	return n > 0 && err == nil
}

// canResume reports whether a server can ask this agent for a connection that goes on.
func (a *Agent) canResume() bool {
	linked := func(s ServerStatus) bool { return s.Protocol == protocolLink }
	return a.ends.Enabled() && slices.ContainsFunc(a.set.status(), linked)
}

// open makes a Conn of an offer's socket.
func (m *message) open() error {
	if m.file != nil {
		defer m.file.Close()
	}
	switch {
	case m.Conn == nil:
		return errors.New("an offer of nothing")
	case m.Conn.Left != (m.file == nil):
		return errors.New("an offer without its socket")
	case m.Conn.Left:
		return nil
	}
	conn, err := net.FileConn(m.file)
	if err != nil {
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok { // FileConn has set its own
		_ = tcp.SetKeepAliveConfig(egress.KeepAlive)
	}
	m.far = tunnel.FromSeized(conn, m.Conn.FinSent)
	return nil
}

// hold waits for successors until ctx ends. One at a time is served.
func (h *Handover) hold(ctx context.Context) {
	socket := h.await(ctx)
	if socket == nil {
		return
	}
	h.running.Go(func() {
		<-ctx.Done() // connected successors stay, for give
		_ = socket.Close()
	})
	for {
		c, err := socket.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(handoverPoll)
		default:
			h.running.Go(func() { h.welcome(&successor{wire: wire{c.(*net.UnixConn)}, said: make(chan string, 1)}) })
		}
	}
}

// await returns the socket once the agent before has freed its path; nil: ctx has ended.
func (h *Handover) await(ctx context.Context) net.Listener {
	told := false
	for {
		h.mu.Lock()
		socket := h.socket
		var err error
		if socket == nil {
			if err = h.listen(); err == nil {
				socket = h.socket
			}
		}
		h.mu.Unlock()
		if socket != nil {
			return socket
		}
		if !told {
			told = true
			h.log.WithError(err).Debug("waiting for the hand-over socket's path")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(handoverPoll):
		}
	}
}

// successor is the agent after this one, as its holder sees it.
type successor struct {
	wire
	said chan string // the kinds of its messages; closed with the connection
	line *os.File    // the life line's write end; nil: it is not welcome
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
	case err == io.EOF: // it looked whether the path is served
		return
	case err != nil:
		_ = s.send(message{Kind: msgRefused, Reason: err.Error()}, -1)
		h.log.WithError(err).Warn("refused a successor")
		return
	}
	h.log.Info("a successor has come for the connections of this agent")
	for {
		m, err := s.receive(time.Time{})
		if err != nil {
			return
		}
		if m.file != nil {
			_ = m.file.Close()
		}
		select {
		case s.said <- m.Kind:
		case <-time.After(handoverTimeout): // an unexpected message: give does not read it
			return
		}
	}
}

// admit checks a peer's user, version, id and servers, and makes it the successor.
func (h *Handover) admit(s *successor) error {
	if err := sameUser(s.conn); err != nil {
		return err
	}
	m, err := s.receive(time.Now().Add(handoverTimeout))
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

func (h *Handover) forget(s *successor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, s)
	if n := slices.Index(h.lines, s.line); n >= 0 && !h.giving { // it was offered nothing
		h.lines = slices.Delete(h.lines, n, n+1)
		_ = s.line.Close()
	}
	if h.next == s {
		h.next = nil
	}
}

// give hands all connections to the successor, if there is one that is ready. Those that it
// does not take stay.
func (h *Handover) give(a *Agent) {
	if h == nil {
		return
	}
	h.mu.Lock()
	s := h.next
	h.giving = true
	h.mu.Unlock()
	if s == nil {
		return
	}
	if err := s.hear(msgReady, handoverReady); err != nil {
		h.log.WithError(err).Warn("the successor is not ready: nothing is handed over")
		return
	}
	a.ends.SetHandingOver(true)
	n, err := s.giveAll(a)
	log := h.log.WithField("connections", n)
	if err != nil {
		a.ends.SetHandingOver(false)
		log.WithError(err).Warn("not all connections were handed over")
		return
	}
	log.Info("handed over the connections of this agent")
}

// giveAll gives batch after batch, and returns how many connections the successor has.
func (s *successor) giveAll(a *Agent) (n int, err error) {
	for {
		batch := a.ends.BeginMoves(handoverBatch)
		if len(batch) == 0 {
			return n, s.send(message{Kind: msgDone}, -1)
		}
		if err := s.offer(batch); err != nil {
			_, _ = s.line.Write([]byte{0}) // before the connection ends: this process lives, and keeps them
			_ = s.conn.Close()
			for _, m := range batch {
				_ = m.Undo(a.serve)
			}
			return n, err
		}
		for _, m := range batch {
			m.Done()
		}
		n += len(batch)
	}
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
	raw, err := m.Socket.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = s.send(offer, int(fd)) }); err != nil {
		return err
	}
	return sent
}

// hear waits for the message of that kind.
func (s *successor) hear(kind string, atMost time.Duration) error {
	late := time.After(atMost)
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
