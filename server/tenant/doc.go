// Package tenant is what a server that serves many clusters knows of each, a
// tenant: who may be its agents and its clients, by which server names it is
// reached, and what it may use. It makes a tenant of a handful of files, which
// are in a folder or in a Secret, and follows them while the server runs; one
// that is broken harms no other.
//
// A Dir owns what was last good of each tenant, and asks its source, folders or
// Secrets, what there is now. The server asks its Table whose a TLS handshake
// is, and is told of each new Table. `konnectivity tenants check` loads a single
// folder by the same code, and `konnectivity tenants make` writes one. Nothing
// here listens, dials or judges a peer.
package tenant
