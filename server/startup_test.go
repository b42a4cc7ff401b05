package server

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/server/registry"
	"konnectivity/tunnel"
)

// agentInMemory connects to nothing, and says that it did.
type agentInMemory struct{}

func (a agentInMemory) Dial(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, nil }
func (a agentInMemory) Life() context.Context                                   { return context.Background() }
func (a agentInMemory) Drains() context.Context                                 { return context.Background() }
func (a agentInMemory) Streams() int                                            { return 0 }
func (a agentInMemory) RTT() time.Duration                                      { return 0 }
func (a agentInMemory) Err() error                                              { return nil }

// dialTook is what a dial ended with, and after how long by the bubble's clock.
func dialTook(ctx context.Context, s startupGate, agents tunnel.Dialer) (time.Duration, error) {
	start := time.Now()
	s.wait(ctx)
	_, err := agents.Dial(ctx, tunnel.NewFlow("tcp", "node:10250"))
	return time.Since(start), err
}

func TestDialsWaitForTheFirstAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		agents := registry.New([]registry.Strategy{registry.Default}, log)
		draining := make(chan struct{})
		s := startupGate{closed, agents.Joined(), time.Now().Add(DefaultSettle), draining}

		// One that gives up, while there is none.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if took, err := dialTook(ctx, s, agents); tunnel.FailureOf(err) != tunnel.FailNoAgent || took != time.Second {
			t.Errorf("a client that waits for 1s: %v after %v", err, took)
		}
		// One that is there when the first comes.
		leave := make(chan func(), 1)
		time.AfterFunc(3*time.Second, func() { leave <- agents.Join(registry.Agent{ID: "a"}, agentInMemory{}) })
		if took, err := dialTook(t.Context(), s, agents); err != nil || took != 3*time.Second {
			t.Errorf("with an agent after 3s: %v after %v", err, took)
		}
		// From then on nobody waits, as little time as has passed.
		(<-leave)()
		if took, err := dialTook(t.Context(), s, agents); tunnel.FailureOf(err) != tunnel.FailNoAgent || took != 0 {
			t.Errorf("after the agent has left: %v after %v", err, took)
		}
	})
}

func TestDialsDoNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draining := make(chan struct{})
		none := registry.New([]registry.Strategy{registry.Default}, logrus.New())
		s := startupGate{closed, none.Joined(), time.Now().Add(DefaultSettle), draining}
		if took, err := dialTook(t.Context(), s, none); tunnel.FailureOf(err) != tunnel.FailNoAgent || took != DefaultSettle {
			t.Errorf("without an agent: %v after %v", err, took)
		}
		if took, err := dialTook(t.Context(), s, none); tunnel.FailureOf(err) != tunnel.FailNoAgent || took != 0 {
			t.Errorf("once that time has passed: %v after %v", err, took)
		}
		if DefaultSettle >= tunnel.DefaultDialTimeout {
			t.Errorf("dials time out in %v, before they hear that there is no agent", tunnel.DefaultDialTimeout)
		}
		s.until = time.Now().Add(time.Hour)
		time.AfterFunc(time.Second, func() { close(draining) })
		if took, err := dialTook(t.Context(), s, none); tunnel.FailureOf(err) != tunnel.FailNoAgent || took != time.Second {
			t.Errorf("at a server that is told to stop: %v after %v", err, took)
		}
	})
}
