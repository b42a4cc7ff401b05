package link

import "slices"

// FeatureForward is named in the HELLO of servers that forward to one another (§11).
const FeatureForward = "forward"

// NetworkRoutes is the network in the OPEN of a stream that brings a peer's routes
// (§11).
const NetworkRoutes = "routes"

// FromServer says whether a link's peer introduces itself as a server that forwards.
func (h Hello) FromServer() bool {
	return h.Role == RoleServer && slices.Contains(h.Features, FeatureForward)
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
