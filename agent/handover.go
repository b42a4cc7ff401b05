//go:build linux

package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/unixsocket"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

const (
	// handoverDial bounds the wait for the agent before at the start.
	handoverDial = 2 * time.Second

	// handoverPoll is the interval at which an agent looks whether it is ready, whether the
	// one before has freed the socket's path, and whether it is to stop.
	handoverPoll = 200 * time.Millisecond

	// greetAgain is the interval at which an agent that was refused asks once more: the one
	// that has the path may have another successor, which goes.
	greetAgain = 5 * time.Second
)

// Handover passes connections from one agent to the next on the same node
// (docs/handover.md). An agent is a successor first, if another agent holds the socket's
// path, and a holder afterwards. A nil Handover does nothing.
type Handover struct {
	path    string
	id      string
	servers []string
	log     logrus.FieldLogger

	before *holder // the agent before; nil: there is none

	running sync.WaitGroup

	mu      sync.Mutex
	ports   []Port
	yielded bool
	socket  net.Listener        // nil: another has the path
	open    map[*successor]bool // those that are connected
	next    *successor          // the one to give to, of those in open; nil: none
	lines   []*os.File          // write ends of life lines, which the end of this process closes
	giving  bool                // the time has come for next
	left    bool                // no other is admitted

	refusal   string // the last reason to refuse a successor that was warned of
	refusedAt time.Time
}

// OpenHandover finds the agent that holds path, or holds it itself. Only an agent with the
// same id and servers is succeeded; id may be "": then it is that of the agent before. It
// blocks for some seconds at most.
func OpenHandover(path, id string, servers []string, log logrus.FieldLogger) (*Handover, error) {
	h := &Handover{path: path, id: id, servers: servers, log: log.WithField("socket", path), open: map[*successor]bool{}}
	there, err := h.meet()
	if !there {
		return h, h.listen()
	}
	if err != nil {
		h.log.WithError(err).Warn("the agent that holds the hand-over socket hands nothing over; it drains as if there were no socket")
	}
	return h, nil
}

// meet makes the agent that has the path the one before, or returns why it does not agree.
func (h *Handover) meet() (there bool, err error) {
	c, err := net.DialTimeout("unix", h.path, handoverDial)
	if err != nil {
		return false, err
	}
	h.before, err = h.greet(wire{c.(*net.UnixConn)})
	return true, err
}

func (h *Handover) listen() error {
	socket, err := unixsocket.Listen(h.path, unixsocket.Options{Replace: true, Mode: 0o600, Log: h.log})
	if err == nil {
		h.socket = socket
	}
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

// AddPort tells h of a port that a successor on the same network needs. It is called before
// the agent runs.
func (h *Handover) AddPort(p Port) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports = append(h.ports, p)
}

// TakePorts asks the agent before for its ports. They are free once it returns nil.
func (h *Handover) TakePorts() error {
	if h == nil || h.before == nil {
		return errors.New("there is no agent that would hand its ports over")
	}
	return h.before.takePorts()
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
		for {
			over := make(chan struct{})
			h.running.Go(func() {
				defer close(over)
				h.succeed(ctx, a)
			})
			switch socket, err := h.claim(ctx, a, over); {
			case socket != nil:
				h.hold(ctx, socket)
				return
			case err != nil:
				return
			}
		}
	})
	return func() {
		h.leave()
		h.running.Wait()
		for _, line := range h.lines {
			_ = line.Close()
		}
	}
}

// claim returns the socket once no other agent has its path: the agent before leaves it as it
// begins to drain, and no third is to come between. Once over, claim returns nil if another
// agent has the path and accepts this one as its successor. It returns an error if ctx has
// ended.
func (h *Handover) claim(ctx context.Context, a *Agent, over <-chan struct{}) (net.Listener, error) {
	greet := time.Now().Add(greetAgain)
	for {
		h.mu.Lock()
		if h.socket == nil {
			if err := h.listen(); err != nil {
				h.log.WithError(err).Debug("another agent has the hand-over socket's path")
			}
		}
		socket := h.socket
		h.mu.Unlock()
		if socket != nil {
			return socket, nil
		}
		if tunnel.Closed(over) && time.Now().After(greet) {
			_, err := h.meet()
			if err == nil {
				a.ends.SetHandingOver(true)
				return nil, nil
			}
			h.log.WithError(err).Debug("the agent that holds the hand-over socket hands nothing over")
			greet = time.Now().Add(greetAgain)
		}
		if !wait.For(ctx, handoverPoll) {
			return nil, ctx.Err()
		}
	}
}

// Close frees the path, and hangs up on the agents before and after. It is for a process
// whose agent has ended, or does not run.
func (h *Handover) Close() {
	if h == nil {
		return
	}
	h.leave()
	if h.before != nil {
		_ = h.before.conn.Close()
		_ = h.before.life.Close()
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
