// Package limits divides the scarce resources of a server among its clusters, and
// those of a cluster among its clients: memory, pending dials, the processors' time for dials. It
// also keeps a tenant to the bounds of its settings.
//
// Limits belongs to the server and has a Tenant for each cluster, which has a
// tunnel.Client for each client that is connected. A connection joins its client
// (Tenant.Join); a dial passes a Gate, the tenant's bounds, and then
// Tenant.Start, its client's share and its turn. What is taken is given back at the
// end of the dial, or of the connection by Flow.AtEnd. Nothing here listens, dials
// or judges who a peer is.
package limits
