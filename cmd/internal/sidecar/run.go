package sidecar

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"konnectivity/internal/observe"
)

// run serves until ctx ends or a part fails, and joins everything. The background
// parts stop after the last connection, since the fronts need them until then.
func (s *sidecar) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	background, broken := errgroup.WithContext(behind)
	context.AfterFunc(broken, cancel)
	background.Go(func() error { s.certs.Run(behind); return nil })
	background.Go(func() error { return s.adapter.Run(behind) })
	for _, run := range s.background {
		background.Go(func() error { run(behind); return nil })
	}
	if s.health != nil {
		s.log.WithField("address", s.health.Addr().String()).Info("serving health and metrics")
		background.Go(func() error { return observe.Serve(behind, s.health, s.observed(), s.log) })
	}
	if s.admin != nil {
		s.log.WithField("address", s.admin.Addr().String()).Info("serving the status page")
		background.Go(func() error { s.table.Run(behind); return nil })
		background.Go(func() error { return observe.Serve(behind, s.admin, s.adminHandler(), s.log) })
	}
	for _, ln := range s.probes {
		background.Go(func() error { answerProbes(ln); return nil })
	}
	fronts, stopping := errgroup.WithContext(ctx)
	for _, f := range s.fronts {
		s.log.WithFields(logrus.Fields{"front": f.front, "address": f.ln.Addr().String()}).Info("serving")
		fronts.Go(func() error { return f.serve(stopping, f.ln) })
	}
	<-stopping.Done()
	s.draining.Store(true)
	s.log.WithField("timeout", s.opts.fronts.Drain.String()).Info("stopping; open connections may finish")
	for _, ln := range s.probes {
		_ = ln.Close() // probes must fail like connections to a proxy that stops
	}
	err := fronts.Wait()
	stop()
	return cmp.Or(background.Wait(), err)
}

// observed serves health and metrics.
func (s *sidecar) observed() http.Handler {
	health := observe.NewHealth(observe.HealthOptions{})
	health.Ready("server", s.adapter.Ready)
	health.Ready("draining", func() error {
		if s.draining.Load() {
			return errors.New("shutting down")
		}
		return nil
	})
	mux := http.NewServeMux()
	health.Mount(mux)
	observe.MountMetrics(mux, s.registry)
	return mux
}
