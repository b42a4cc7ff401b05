package server

import (
	"context"
	"errors"

	"konnectivity/internal/tlsreload"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// changes have open connections judged anew. Who signals one does not wait for that.
type changes struct {
	policy chan struct{} // the policy file has other rules
	trust  chan struct{} // CAs or revocation lists have changed
}

func newChanges() changes { return changes{make(chan struct{}, 1), make(chan struct{}, 1)} }

// TrustChanged is called when CAs or revocation lists of listeners, or of the links to other
// servers, have changed: what they do not admit any more is ended soon. Any goroutine may
// call it.
func (s *Server) TrustChanged() {
	s.trustChanged.Store(int64(tunnel.Now()))
	wait.Signal(s.changes.trust)
}

// rejudge follows changes until life ends.
func (s *Server) rejudge(life context.Context) {
	for {
		select {
		case <-life.Done():
			return
		case <-s.changes.policy:
			ended := 0
			s.eachCluster(func(cl *cluster) { ended += cl.forwarder.Flows.JudgeAll() })
			if ended > 0 {
				s.opts.Log.WithField("connections", ended).Warn("open connections were ended that the new policy does not allow")
			}
		case <-s.changes.trust:
			s.own.cut(func(c *conn) error { return c.recheck(c.chain.Parse()) })
		}
	}
}

// cut ends the connections for which judge has an error, and says how many there were.
func (cl *cluster) cut(judge func(*conn) error) {
	cl.mu.Lock()
	var all []*conn
	for c := range cl.conns.All() {
		all = append(all, c)
	}
	cl.mu.Unlock()
	count := 0
	for _, c := range all { // without the lock: to verify a certificate takes some 100 µs
		switch err := judge(c); {
		case err == nil || c.over.Swap(true):
			continue
		case errors.Is(err, tlsreload.ErrRevoked):
			c.cut(errRevoked)
		default:
			c.cut(errCut)
		}
		count++
	}
	if count > 0 {
		cl.log.WithField("connections", count).Warn("peers were disconnected that are not admitted any more")
	}
}

// judge says why an open connection is not allowed any more. Whoever asked for it is cut
// with its own connection to this server, if that is not admitted any more.
func (cl *cluster) judge(f *tunnel.Flow) error {
	if f.Front == frontAPI {
		if len(cl.spec().APIServers) == 0 {
			return errNoAPI
		}
		return nil
	}
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return err
	}
	if err := cl.allows(host, port); err != nil {
		return err
	}
	if own := cl.spec().PolicyFile; own != nil {
		if err := own.Still(f, "", host, port); err != nil {
			return err
		}
	}
	return cl.server.opts.PolicyFile.StillServer(f, host, port)
}

var errNoAPI = errors.New("no API server is named for the cluster any more")
