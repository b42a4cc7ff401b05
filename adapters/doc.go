// Package adapters is what both sidecars share: how a request reaches its
// destination.
//
// An [Adapter] is composed once per process from [Options]. It gives each front
// what it needs: a tunnel.Dialer for SOCKS5, for CONNECT and for redirected
// connections, and an http.Transport for plain forwarded requests. Each of these
// is a path, which owns no state of its own; the parts that all paths share are
// the way to the konnectivity server (package uplink), the resolver chain
// (packages resolve and hosted), the bypass for cloud APIs and the customer's
// proxies (proxydialer.go). cmd/internal/sidecar calls it, and so do the tools that
// try what a sidecar would do (cmd/konnectivity).
package adapters
