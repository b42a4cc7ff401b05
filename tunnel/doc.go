// Package tunnel is the vocabulary of the suite.
//
// Everything that reaches a destination is a [Dialer]; everything that carries
// bytes is a [Conn], a net.Conn that can end each direction by itself; one
// [Relay] joins two of them. Every binary is a composition of those three, so
// kube-apiserver over a unix socket, a SOCKS5 sidecar, an old agent and a new
// one all share one code path.
//
// The package imports nothing but the standard library.
package tunnel
