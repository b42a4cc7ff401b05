//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"konnectivity/agent/egress"
	"konnectivity/internal/admin"
	"konnectivity/tunnel"
)

// deathTime bounds the wait for a holder's life line to end, once its connection has: the
// kernel closes a process's descriptors one after the other.
const deathTime = time.Second

// holder is the agent before, as its successor sees it.
type holder struct {
	wire
	life  *os.File // ends with the process
	keeps bool     // it has said on the life line that it keeps the batch
}

// greet introduces this agent to the one before. It closes w with an error.
func (h *Handover) greet(w wire) (before *holder, err error) {
	defer func() {
		if err != nil {
			_ = w.conn.Close()
		}
	}()
	if err := sameUser(w.conn); err != nil {
		return nil, err
	}
	if err := w.send(message{Kind: msgHello, Version: handoverVersion, ID: h.id, Servers: h.servers}, -1); err != nil {
		return nil, err
	}
	m, err := w.receive(time.Now().Add(handoverDial))
	switch {
	case err != nil:
		return nil, err
	case m.Kind == msgRefused:
		return nil, errors.New(m.Reason)
	case m.Kind != msgWelcome || m.file == nil:
		m.closeFile()
		return nil, errors.New("it gave no answer that this version knows")
	}
	h.id = m.ID
	return &holder{wire: w, life: m.file}, nil
}

// takePorts asks for the holder's ports, and waits until it has freed them.
func (b *holder) takePorts() error {
	if err := b.send(message{Kind: msgPorts}, -1); err != nil {
		return err
	}
	m, err := b.receive(time.Now().Add(handoverTimeout))
	if err != nil {
		return err
	}
	if m.closeFile(); m.Kind != msgYielded {
		return fmt.Errorf("it says %q when asked for its ports", m.Kind)
	}
	return nil
}

// succeed takes over connections until the agent before has none, or is gone.
func (h *Handover) succeed(ctx context.Context, a *Agent) {
	before := h.before
	if before == nil {
		return
	}
	n, err := before.take(ctx, a, h.log)
	_ = before.conn.Close() // it does not wait for an answer
	h.running.Go(func() {   // until then it may have connections that were not handed over
		for ctx.Err() == nil && !before.ends(handoverPoll) {
		}
		_ = before.life.Close()
		if ctx.Err() == nil { // else this agent may be handing over itself
			a.ends.SetHandingOver(false)
		}
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

// intake is what a successor has of the connections of the agent before.
type intake struct {
	agent *Agent
	log   logrus.FieldLogger

	batch    []message      // offered, and the holder's until it confirms
	adopting sync.WaitGroup // the batch before
	adopted  int            // connections that go on here; adopting's while that runs
}

// take receives batches, and returns how many connections this agent has taken over.
func (b *holder) take(ctx context.Context, a *Agent, log logrus.FieldLogger) (n int, err error) {
	in := &intake{agent: a, log: log}
	err = b.fill(ctx, in)
	if len(in.batch) > 0 && b.dead() { // no other process has them
		in.confirm()
	}
	for _, m := range in.batch {
		m.closeFile()
	}
	in.adopting.Wait()
	return in.adopted, err
}

// fill receives messages until the holder has no more connections. It fails if the holder ends
// before, and once ctx has ended: at the latest when a batch that has begun is silent for long.
func (b *holder) fill(ctx context.Context, in *intake) error {
	ready, heard := false, time.Now()
	for {
		if !ready && in.agent.canResume() {
			ready = true
			if err := b.send(message{Kind: msgReady}, -1); err != nil {
				return err
			}
		}
		m, err := b.receive(time.Now().Add(handoverPoll))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && (ctx.Err() == nil || len(in.batch) > 0 && time.Since(heard) < handoverTimeout):
			continue
		case err != nil:
			return err
		}
		heard = time.Now()
		if done, err := b.obey(m, in); done || err != nil {
			return err
		}
	}
}

// obey does what a message of the holder's says, and reports whether it was the last one.
func (b *holder) obey(m message, in *intake) (done bool, err error) {
	switch m.Kind {
	case msgOffer:
		if in.batch = append(in.batch, m); len(in.batch) > handoverBatch {
			err = errors.New("more connections than a batch has")
		}
	case msgEnd:
		err = b.send(message{Kind: msgTaken}, -1)
	case msgConfirm:
		in.confirm()
	case msgDone:
		done = true
	default:
		m.closeFile()
		err = fmt.Errorf("it says %q, which this version does not know", m.Kind)
	}
	return done, err
}

// confirm makes the batch this agent's, and goes on with its connections while the next one
// comes.
func (in *intake) confirm() {
	batch := in.batch
	in.batch = nil
	in.adopting.Wait()
	in.adopting.Go(func() { in.adopted += in.agent.adopt(batch, in.log) })
}

// adopt goes on with connections that were offered, and returns how many have not ended.
func (a *Agent) adopt(offers []message, log logrus.FieldLogger) (n int) {
	for _, m := range offers {
		far, err := m.open()
		if err == nil {
			err = a.ends.Adopt(*m.Conn, far, a.serve)
		}
		if err != nil {
			log.WithError(err).Debug("a connection that was handed over has ended")
			continue
		}
		n++
	}
	return n
}

// dead reports whether the holder's process is gone, and not just its connection. One that
// has kept the batch has said so on the life line.
func (b *holder) dead() bool {
	_ = b.conn.Close()
	return b.ends(deathTime) && !b.keeps
}

// ends waits until the life line ends, and returns false where it does not within that
// time.
func (b *holder) ends(within time.Duration) bool {
	poll := []unix.PollFd{{Fd: int32(b.life.Fd()), Events: unix.POLLIN}}
	for until := time.Now().Add(within); ; {
		n, err := unix.Poll(poll, max(int(time.Until(until)/time.Millisecond), 0))
		switch {
		case err == unix.EINTR:
		case err != nil || n == 0:
			return false
		default:
			if n, _ := unix.Read(int(b.life.Fd()), make([]byte, 1)); n <= 0 {
				return true
			}
			b.keeps = true
		}
	}
}

// canResume reports whether a server can ask this agent for a connection that goes on.
func (a *Agent) canResume() bool {
	linked := func(s admin.Peer) bool { return s.Protocol == protocolLink }
	return a.ends.Enabled() && slices.ContainsFunc(a.set.status(), linked)
}

// closeFile closes the descriptor that came with a message, if any.
func (m *message) closeFile() {
	if m.file != nil {
		_ = m.file.Close()
	}
}

// open makes a Conn of an offer's socket; nil if it has none.
func (m *message) open() (tunnel.Conn, error) {
	defer m.closeFile()
	switch {
	case m.Conn == nil:
		return nil, errors.New("an offer of nothing")
	case m.Conn.Left != (m.file == nil):
		return nil, errors.New("an offer without its socket")
	case m.Conn.Left:
		return nil, nil
	}
	conn, err := net.FileConn(m.file)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("an offer of what is no TCP socket")
	}
	_ = tcp.SetKeepAliveConfig(egress.KeepAlive) // FileConn has set its own
	return tunnel.FromSeized(conn, m.Conn.FinSent), nil
}
