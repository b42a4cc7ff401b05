// Package uplink is the way to the konnectivity server: streams on warm links
// where the server has them, else one HTTP CONNECT over mTLS per connection.
// ALPN decides on the one handshake there is anyway.
//
// A Server keeps sessions, each to one of the server's addresses, in a peers.Set.
// There are two kinds: a linkSession is a link of one or more lanes, and a
// connectSession a server without links, to which each dial makes a connection of
// its own. The Set's loop owns their states and publishes them as a snapshot; a
// dial picks from that snapshot (pick.go):
//
//	Up                            first, the one with the fewest streams
//	Agentless                     then, and the Set searches for a server with agents
//	Unlisted, Leaving, Replaced   then, as they may end soon
//	a connectSession              last, as its connections do not outlive it
//
// Where there is no session, a dial waits for the Set to make one; all that wait
// share it. A session that is Leaving or Replaced is retired (retire.go): its
// connections move to another link, and it ends once it is idle and another is there.
//
// A linkSession is Up from its greeting until its server says otherwise or its last
// lane is lost. A connectSession is Up from a handshake in which the server chose
// HTTP/1.1 until a connection to it fails, or a later handshake chooses the link;
// it makes one every 30 s, for readiness and to find that out.
//
// A connector makes the connections (connector.go), a directory has the addresses,
// and health what the last handshake told of the server.
//
// A Server owns its sessions, the goroutines that keep them, and the ends of
// connections that outlive their links; connections made by CONNECT are their
// callers'. Package adapters makes one for each process, and the operator's
// tool one to try the way.
package uplink
