package link

import (
	"slices"

	"github.com/sirupsen/logrus"
)

// FeatureForward is named in the HELLO of servers that forward to one another (§11), to
// whatever peer.
const FeatureForward = "forward"

// NetworkRoutes is the network in the OPEN of a stream that brings a peer's routes
// (§11).
const NetworkRoutes = "routes"

// NetworkState is the network in the OPEN of a stream that brings a peer's state (§11).
const NetworkState = "state"

// FromServer says whether a link's peer introduces itself as a server that forwards.
func (h Hello) FromServer() bool {
	return h.Role == RoleServer && slices.Contains(h.Features, FeatureForward)
}

// Forwards says whether the peer is a server that forwards to others.
func (ses *Session) Forwards() bool { return ses.forward }

// WarnAlone warns of a server that does not forward, for a peer that is connected to some
// servers only.
func WarnAlone(log logrus.FieldLogger, server string) {
	log.WithField("server", server).Warn("--max-servers is set, but this server does not forward to others (--peer-servers): what is connected to other servers only is not reached by it")
}

// Bound is how many streams the peer has opened whose connections do not outlive them. It
// costs a pass over all streams.
func (ses *Session) Bound() (n int) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for id, st := range ses.streams.byID {
		if !ses.streams.own(id) && (!st.carrier.outlived || !st.state.established()) {
			n++
		}
	}
	return n
}

// SendMoves sends MOVE (§10) for all connections that outlive the streams which the peer
// has opened: this process leaves. It does not block.
func (ses *Session) SendMoves() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for id, st := range ses.streams.byID {
		if !ses.streams.own(id) && st.carrier.outlived && st.state.established() {
			st.send.out.move = true
			st.queueLocked()
		}
	}
}
