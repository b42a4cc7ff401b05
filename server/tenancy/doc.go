// Package tenancy is what a server that serves many clusters knows of each, a
// tenant: who may be its agents and its clients, by which server names it is
// reached, and what it may use. It reads a folder for each tenant and follows
// it while the server runs; one that is broken harms no other.
//
// A Dir owns what was last good of each folder. The server asks its Table whose a
// TLS handshake is, and is told of each new Table. `konnectivity tenants check`
// loads a single folder by the same code, and `konnectivity tenants make` writes
// one. Nothing here listens, dials or judges a peer.
package tenancy
