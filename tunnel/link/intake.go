package link

import (
	"fmt"

	"konnectivity/tunnel"
)

const (
	// maxStreams bounds what one peer may have open on one link (§7). At
	// about 1 KiB for an idle stream it is 64 MiB.
	maxStreams = 65536

	// MaxDials bounds how many dials one peer may have under way, each a
	// goroutine and perhaps a socket; and how many connections it may be
	// resuming, which have their sockets.
	MaxDials = 4096
)

// intake is what the peer has under way here by the streams that it opened, and what
// bounds that. It has no lock: Session.mu guards it.
type intake struct {
	refuses  bool // whatever is asked for
	dials    int
	resuming int      // dials that resume a connection
	serving  int      // of them all: what the Handler has not done with
	budget   *Budget  // of the peer's streams
	clients  *Clients // that divide it; nil: the peer numbers none
}

// refusal is the answer to an OPEN that is not even tried, or nil.
func (in *intake) refusal(m openMsg, streams *streams) *openedMsg {
	_, _, err := tunnel.SplitAddress(m.address)
	switch {
	case err != nil:
		typed := tunnel.AsDialError("", err)
		return &openedMsg{failure: typed.Failure, reason: typed.Text()}
	case in.refuses:
		return &openedMsg{failure: tunnel.FailDenied, reason: "this peer serves no connections"}
	case streams.count() >= streams.most:
		return &openedMsg{failure: tunnel.FailExhausted, reason: fmt.Sprintf("more than %d connections on one link", streams.most)}
	case *in.pending(m.resume.Again()) >= MaxDials:
		return &openedMsg{failure: tunnel.FailExhausted, reason: fmt.Sprintf("more than %d dials under way on one link", MaxDials)}
	default:
		return nil
	}
}

// pending is how many of the peer's streams are not answered: of those that
// resume a connection, or of the others. So when thousands go on at once, dials
// still have their room.
func (in *intake) pending(again bool) *int {
	if again {
		return &in.resuming
	}
	return &in.dials
}

// enter counts a stream that is to be served, and returns its budget.
func (in *intake) enter(m openMsg, peer string) *Budget {
	*in.pending(m.resume.Again())++
	in.serving++
	if in.clients == nil {
		return in.budget
	}
	return in.clients.Share(tunnel.Origin{Server: peer, Client: m.client, Cluster: m.cluster}, in.budget)
}
