package agent

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

var errSilent = errors.New("the server has been silent for too long and is considered dead")

// watchLiveness notices that a gRPC server is gone without a word, until ended is closed. It then
// notes that conn is silent, and closes it.
//
// It does not use gRPC's own keepalive: upstream's server allows a client one
// HTTP/2 ping in 30 s and drops it for more (cmd/server/app/server.go). A call is
// not a ping, so the standard health check is called instead; old servers answer
// that they have none, which is answer enough. Any byte that arrives counts as a
// sign of life, so a link full of data is not mistaken for a dead one.
func watchLiveness(client grpc.ClientConnInterface, conn *heardConn, keepalive time.Duration, ended <-chan struct{}) {
	ask, dead := keepaliveTimes(keepalive)
	silence := link.NewSilence(ask, dead, time.Now())
	ctx, cancel := context.WithCancel(context.Background())
	var answered <-chan struct{} // nil: nothing was asked
	defer func() {
		if cancel(); answered != nil {
			<-answered
		}
	}()
	timer := time.NewTimer(silence.Pause)
	defer timer.Stop()
	for {
		select {
		case <-ended:
			return
		case <-timer.C:
		}
		asks, dead := look(&silence, time.Now(), conn.heard())
		switch {
		case dead:
			conn.silent.Store(true)
			_ = conn.Close()
			return
		case asks && (answered == nil || tunnel.Closed(answered)):
			answered = askHealth(ctx, client, silence.Dead)
		}
		timer.Reset(silence.Pause)
	}
}

// look says whether the server is to be asked, or is dead, and sets the pause.
func look(s *link.Silence, now, heard time.Time) (asks, dead bool) {
	s.Look(now, heard)
	next := s.Ask - s.Lasts // when the server is due to be asked
	if asks = next <= 0; asks {
		next = s.Ask
	}
	s.Rest(next, s.Lasts)
	return asks, s.Lasts >= s.Dead
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
