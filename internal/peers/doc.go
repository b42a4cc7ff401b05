// Package peers stays connected to a set of servers: agents to all there are,
// sidecars to each address of theirs. Plan decides and does nothing else: which
// addresses to dial now, when to look again, which session is one too many. Set
// is the one loop that owns a Plan, its sessions and its attempts, and does what
// Plan says. The two users differ in their Policy.
package peers
