package server

import (
	"context"
	"slices"
	"time"

	"konnectivity/internal/wait"
)

// drain notifies all peers that the server stops, and returns when the clients'
// connections have ended, the grace period is over, or something failed.
func (s *Server) drain(failed context.Context, clientsDone <-chan struct{}) {
	s.startDrain()
	for _, f := range slices.Concat(s.fronts[:]...) {
		f.Drain()
	}
	s.eachCluster(func(cl *cluster) { cl.peers.drain() })
	if s.opts.Grace < 0 || failed.Err() != nil {
		return
	}
	ends := []<-chan struct{}{clientsDone}
	over, giveUp := context.WithCancel(context.Background())
	if s.peering != nil {
		left := wait.Go(func() { s.peering.leave(over, func() int { return s.counts().Agents }) })
		defer func() { <-left }()
		ends = append(ends, left)
	}
	if s.byGRPC[clients] != nil {
		// Clients read GOAWAY and open their next stream elsewhere. This
		// returns when the last stream has ended, by itself or by stop.
		// Streams outlast their connections while what a client wrote before it
		// closed is on its way. It takes no more connections, so those come first
		// that were accepted and are still in their handshake.
		graceful := wait.Go(func() {
			for _, f := range s.fronts[clients] {
				f.Settle(over)
			}
			s.tenants.awaitSettled(over, clients)
			s.byGRPC[clients].server.GracefulStop()
		})
		defer func() {
			s.byGRPC[clients].stop()
			<-graceful
		}()
		ends = append(ends, graceful)
	}
	defer giveUp() // called first of these
	s.opts.Log.WithField("grace", s.opts.Grace.String()).Info("shutting down: open connections may finish")
	grace := time.After(s.opts.Grace)
	for _, ended := range ends {
		select {
		case <-ended:
		case <-failed.Done():
			return
		case <-grace:
			s.opts.Log.Warn("shutting down: the grace period is over, open connections are cut")
			return
		}
	}
}
