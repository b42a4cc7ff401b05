// Package peers stays connected to a set of servers: agents to all there are,
// sidecars to each address of theirs. Its two users, agent and adapters/uplink,
// differ in their Policy.
//
// A Plan decides which addresses to dial now, when to look again, and which
// session is one too many. It is pure: no I/O, no lock, no clock. A Set is the
// one loop that owns a Plan, its sessions and its attempts. Others ask the loop
// by its mailbox, and read Members, a snapshot that the loop publishes whole.
//
// A session that was taken in is in one of these states:
//
//	Up         it takes new connections
//	Agentless  its server says that no agent serves; used where nothing is Up
//	Unlisted   its address is no longer one of the server's; used where nothing stays
//	Leaving    its server said that it is about to go; as Unlisted
//	Replaced   another session has taken its place; as Unlisted
//	Ended      it is over
//
// Transitions, and what they follow from:
//
//	Up        → Agentless           the server says that its last agent has gone
//	Agentless → Up                  the server says that it has an agent again
//	Up, Agentless → Unlisted        a look-up no longer finds the address (Policy.ByAddress)
//	Unlisted  → Up, Agentless       a look-up finds it again
//	Up, Agentless, Unlisted → Leaving   the server drains
//	Up, Agentless → Replaced        a search found a server that has agents, or the
//	                                client is connected to as many that it prefers
//	any       → Ended               the session is closed, or its connection is lost
//
// A session never comes back from Leaving, Replaced or Ended. State follows from
// what the session says now and what the loop has noted of it, so that no reader
// sees a session as Up whose server has just said otherwise.
package peers
