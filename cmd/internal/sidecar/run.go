package sidecar

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"konnectivity/internal/cli"
	"konnectivity/internal/observe"
)

// run serves until ctx ends or a part fails, and joins everything.
func (s *sidecar) run(ctx context.Context) error {
	parts := []func(context.Context) error{s.adapter.Run}
	if s.health != nil {
		s.Log.WithField("address", s.health.Addr().String()).Info("serving health and metrics")
		parts = append(parts, func(ctx context.Context) error { return observe.Serve(ctx, s.health, s.observed(), s.Log) })
	}
	if s.admin != nil {
		s.Log.WithField("address", s.admin.Addr().String()).Info("serving the status page")
		parts = append(parts, func(ctx context.Context) error { return observe.Serve(ctx, s.admin, s.adminHandler(), s.Log) })
	}
	return s.serveBeside(ctx, parts...)
}

// serveBeside serves until the delay after ctx is over, or until a part or a front fails.
func (s *sidecar) serveBeside(ctx context.Context, parts ...func(context.Context) error) error {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		s.draining.Store(true)
		if s.opts.delay > 0 {
			s.Log.WithField("delay", s.opts.delay.String()).Info("going on as before for the delay")
		}
		time.AfterFunc(s.opts.delay, end)
	})()
	return cli.Around(serving, s.serve, s.Background, parts...)
}

// serve runs the fronts, and ends the answers to probes when these stop.
func (s *sidecar) serve(ctx context.Context) error {
	fronts, stopping := errgroup.WithContext(ctx)
	for _, f := range s.fronts {
		s.Log.WithFields(logrus.Fields{"front": f.front, "address": f.ln.Addr().String()}).Info("serving")
		fronts.Go(func() error { return f.serve(stopping, f.ln) })
	}
	<-stopping.Done()
	s.draining.Store(true)
	s.Log.WithField("timeout", s.opts.fronts.Drain.String()).Info("stopping; open connections may finish")
	for _, ln := range s.probes {
		_ = ln.Close() // probes must fail like connections to a proxy that stops
	}
	return fronts.Wait()
}

// observed serves health and metrics.
func (s *sidecar) observed() http.Handler {
	draining := func() error {
		if s.draining.Load() {
			return errors.New("shutting down")
		}
		return nil
	}
	return observe.Health{Metrics: s.Registry, Checks: []observe.Check{{Name: "server", Do: s.adapter.Ready}, {Name: "draining", Do: draining}}}.Handler()
}
