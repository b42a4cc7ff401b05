// Package routes holds what a server knows of the agents of other servers, so that it
// can forward a dial to a server that has an agent for it (docs/link-protocol.md §11).
//
// A server tells each peer the keys that its agents have, by Records: first all there
// are, then what changes. A Feed is what one peer has yet to be told, and a Table what
// this server was told by all. Both are pure: no I/O, no lock, no clock.
package routes
