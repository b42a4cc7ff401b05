// Package server is the konnectivity server: clients ask it for destinations,
// and it reaches them through agents, which dial it from the data plane.
//
// It puts parts together and holds none of their work: frontend accepts and
// tells protocols apart, auth admits agents, registry picks one for each
// destination, tunnel relays. Listeners are handed in, so that whoever starts
// a server knows its ports before anything is served.
package server
