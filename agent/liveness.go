package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

const (
	// askAfter is the silence after which a server is asked whether it lives,
	// and deadAfter the one after which it is given up. Both are the link's
	// (docs/link-protocol.md §6), so either protocol notices a server that is
	// gone without a word within 20 s.
	askAfter  = 5 * time.Second
	deadAfter = 15 * time.Second
	// leastKeepalive keeps a tiny --keepalive-time from pinging all the time; the
	// replaced agent's gRPC has such a bound too, of 10 s.
	leastKeepalive = time.Second
	// keepaliveGrace is how long a server has to answer where the operator
	// chose the silence before the question.
	keepaliveGrace = 10 * time.Second
)

var errSilent = errors.New("the server has been silent for too long and is considered dead")

// keepaliveTimes are the times for an operator's --keepalive-time; 0 is none.
func keepaliveTimes(keepalive time.Duration) (ask, dead time.Duration) {
	if keepalive <= 0 {
		return askAfter, deadAfter
	}
	keepalive = max(keepalive, leastKeepalive)
	return keepalive, keepalive + keepaliveGrace
}

// liveness notices that a gRPC server is gone without a word.
//
// It does not use gRPC's own keepalive: upstream's server allows a client one
// HTTP/2 ping in 30 s and drops it for more (cmd/server/app/server.go). A call is
// not a ping, so the standard health check is called instead; old servers answer
// that they have none, which is answer enough. Any byte that arrives counts as a
// sign of life, so a link full of data is not mistaken for a dead one.
type liveness struct {
	dead atomic.Bool
	done <-chan struct{}
}

// watchLiveness watches until ended is closed. It closes conn if the server is
// dead.
func watchLiveness(client grpc.ClientConnInterface, conn *heardConn, keepalive time.Duration, ended <-chan struct{}) *liveness {
	l := new(liveness)
	l.done = wait.Go(func() { l.run(client, conn, keepalive, ended) })
	return l
}

func (l *liveness) join() { <-l.done }

func (l *liveness) run(client grpc.ClientConnInterface, conn *heardConn, keepalive time.Duration, ended <-chan struct{}) {
	looks := newLooks(keepalive)
	looked := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var answered <-chan struct{} // nil: nothing was asked
	defer func() {
		if cancel(); answered != nil {
			<-answered
		}
	}()
	timer := time.NewTimer(looks.pause)
	defer timer.Stop()
	for {
		select {
		case <-ended:
			return
		case <-timer.C:
		}
		now := time.Now()
		asks, dead := looks.look(now.Sub(conn.heard()), now.Sub(looked))
		looked = now
		switch {
		case dead:
			l.dead.Store(true)
			_ = conn.Close()
			return
		case asks && (answered == nil || tunnel.Closed(answered)):
			answered = askHealth(ctx, client, looks.dead)
		}
		timer.Reset(looks.pause)
	}
}

// looks decides when a silent server is asked, and when it counts as dead.
type looks struct {
	ask, dead time.Duration
	pause     time.Duration // until the next look
}

func newLooks(keepalive time.Duration) *looks {
	ask, dead := keepaliveTimes(keepalive)
	return &looks{ask: ask, dead: dead, pause: ask}
}

// look takes in how long the server has been silent, and how long the pause has taken. After
// one that took too long this process was stopped, or starved: the silence was its own, and
// the server has its time to answer once more.
func (l *looks) look(silence, took time.Duration) (asks, dead bool) {
	late := took > l.pause+(l.dead-l.ask)/4
	switch {
	case silence < l.ask:
		l.pause = l.ask - silence
	case late:
		l.pause = l.dead - l.ask
	default:
		l.pause = min(l.dead-silence, l.ask)
	}
	return silence >= l.ask, silence >= l.dead && !late
}

// askHealth asks in the background; the channel is closed when it is over. What
// the answer is does not matter, only that bytes arrive.
func askHealth(ctx context.Context, client grpc.ClientConnInterface, bound time.Duration) <-chan struct{} {
	return wait.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		_, _ = healthpb.NewHealthClient(client).Check(ctx, &healthpb.HealthCheckRequest{})
	})
}
