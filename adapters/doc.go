// Package adapters is what both sidecars share: how a request reaches its
// destination.
//
// An [Adapter] is composed once per process from [Options] and gives each front
// what it needs: a tunnel.Dialer for SOCKS5, one for HTTP CONNECT and an
// http.Transport for plain forwarded requests. Behind them stand, as parts of
// their own, the way to the konnectivity server ([Server]), the resolver chain
// (package resolve), the bypass for cloud APIs ([Bypass]) and the chaining to a
// customer's proxy (package chain).
package adapters
