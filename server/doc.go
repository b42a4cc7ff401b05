// Package server is the konnectivity server: clients ask it for destinations,
// and it reaches them through agents, which dial it from the data plane.
//
// It puts parts together, and they do the work: frontend accepts connections
// and tells protocols apart, auth admits agents, tenancy knows the tenants,
// registry picks an agent for each destination, tunnel relays. What is its own
// is what ties them to one cluster and one client: clusters, accounts, bounds
// and turns. Listeners are handed in, so that whoever starts a server
// (cmd/konnectivity-server) knows its ports before anything is served.
package server
