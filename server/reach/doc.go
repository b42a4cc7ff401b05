// Package reach keeps the links between servers that forward to one another
// (docs/link-protocol.md §11): it finds the others and links to them, tells each
// what this server's agents serve, and writes what others tell to a registry.Peers.
//
// Each link is used in both directions. Two servers that have each other's address
// have two links, and use both.
package reach
