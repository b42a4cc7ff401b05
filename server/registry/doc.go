// Package registry knows the agents that are connected and picks one for each
// destination.
//
// A Registry is a tunnel.Dialer: it walks the strategies in the order the
// operator gave, picks an agent, and lets that agent's connection dial. It
// holds no lock while anything is dialed. Each cluster of a server
// (server/cluster.go) has one; the agents' connections are their owners' to
// close.
package registry
