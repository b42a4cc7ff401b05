// Package peers stays connected to a set of servers: agents to all there are,
// sidecars to each address of theirs. A Plan decides which addresses to dial
// now, when to look again, and which session is one too many; it does nothing
// else. A Set is the one loop that owns a Plan, its sessions and its attempts,
// and does what the Plan says. Its two users, agent and adapters/uplink, differ
// in their Policy.
package peers
