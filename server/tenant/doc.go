// Package tenant has the specs of a server's tenants, clusters that share it: the CAs
// and identities of their agents and clients, their server names, ports and bounds. It makes a tenant of a handful of files, which
// are in a folder or in a Secret, and follows them while the server runs; one
// that is broken harms no other.
//
// A Dir owns the last good Spec of each tenant and compares it with its source, folders
// or Secrets. The server finds the tenant of a TLS handshake in its Table, and is
// called with each new Table. `konnectivity tenants check` loads a single
// folder by the same code, and `konnectivity tenants make` writes one. Nothing
// here listens, dials or judges a peer.
package tenant
