package uplink

import (
	"context"
	"net/netip"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// session is a way to the server that the set keeps: a linkSession or a
// connectSession.
type session interface {
	peers.Session
	tunnel.Dialer
}

// linkSession is one link, of one or more lanes.
type linkSession struct {
	*lanes.Group
	addr  netip.AddrPort
	since time.Time
	id    string // of this link and no other, whatever servers call themselves
}

var _ peers.Rerouter = (*linkSession)(nil)

// Key implements peers.Session: two links to one server are not one too many.
func (l *linkSession) Key() string { return l.id }

// Dial implements tunnel.Dialer.
func (l *linkSession) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	f.Hop = tunnel.Hop{Role: tunnel.RoleServer, ID: l.Peer().ID}
	return l.Group.Dial(ctx, f)
}

// alive says whether l has not ended. Once it says no, Done is closed.
func (l *linkSession) alive() bool {
	if l.Err() == nil {
		return true
	}
	<-l.Done() // about to be closed
	return false
}

// agents reports whether the server has agents: it says otherwise if not.
func (l *linkSession) agents() bool { return l.Serving().Why == "" }

// serves reports whether a session's server says, or is taken, to have agents. One
// without links does not say.
func serves(s session) bool {
	l, linked := s.(*linkSession)
	return !linked || l.agents()
}

// serverOf is the id of a session's server, where it is known.
func serverOf(s session) string {
	if l, linked := s.(*linkSession); linked {
		return l.Peer().ID
	}
	return s.Key()
}

// Link is a link to a server, as an operator sees it.
type Link struct {
	Peer     link.Hello // without its token
	Address  netip.AddrPort
	Since    time.Time
	Heard    time.Time // when the server last sent anything
	Draining bool
	Stats    link.Stats
}

// Stats are figures for metrics.
type Stats struct {
	Links    int   // that are up
	Lanes    int   // their TCP connections
	Streams  int   // on them
	Connects int64 // handshakes with the server that worked
	Failures int64 // those that did not
	Lost     int64 // links that ended without having been asked to
}
