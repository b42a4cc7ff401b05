// Package transparent is the front for programs that know no proxy. Netfilter
// redirects their connections to it (`konnectivity redirect`), and the kernel
// tells the original destination of each. It works on Linux only.
//
// By then the client takes its connection for established, so there is no answer
// to send: one whose destination cannot be reached is reset.
//
// A Server owns the connections that it accepts, until Serve returns.
// cmd/internal/sidecar makes it.
package transparent
