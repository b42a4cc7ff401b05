package sidecar

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/observe"
)

// run serves until ctx ends or a part fails, and joins everything. What the
// fronts need lives until their last connection has ended.
func (s *sidecar) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var background, fronts sync.WaitGroup
	background.Go(func() { s.certs.Run(behind) })
	background.Go(func() { failing(fail, s.adapter.Run(behind)) })
	if s.health != nil {
		s.log.WithField("address", s.health.Addr().String()).Info("serving health and metrics")
		background.Go(func() { failing(fail, observe.Serve(behind, s.health, s.observed(), s.log)) })
	}
	if s.admin != nil {
		s.log.WithField("address", s.admin.Addr().String()).Info("serving the status page")
		background.Go(func() { s.table.Run(behind) })
		background.Go(func() { failing(fail, observe.Serve(behind, s.admin, s.adminHandler(), s.log)) })
	}
	for _, ln := range s.probes {
		background.Go(func() { answerProbes(ln) })
	}
	for _, f := range s.fronts {
		s.log.WithFields(logrus.Fields{"front": f.front, "address": f.ln.Addr().String()}).Info("serving")
		fronts.Go(func() { failing(fail, f.serve(ctx, f.ln)) })
	}
	<-ctx.Done()
	s.draining.Store(true)
	s.log.WithField("timeout", s.opts.fronts.Drain.String()).Info("stopping; open connections may finish")
	for _, ln := range s.probes {
		_ = ln.Close() // a proxy that stops takes no connections either
	}
	fronts.Wait()
	stop()
	background.Wait()
	var failed *partError
	if errors.As(context.Cause(ctx), &failed) {
		return failed.err
	}
	return nil
}

// partError tells a part that failed from an end that was asked for.
type partError struct{ err error }

func (e *partError) Error() string { return e.err.Error() }

func failing(fail context.CancelCauseFunc, err error) {
	if err != nil {
		fail(&partError{err})
	}
}

// observed answers health and metrics.
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
