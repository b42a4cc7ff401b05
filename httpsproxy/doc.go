// Package httpsproxy is the HTTP(S) proxy front: CONNECT tunnels (RFC 9110
// §9.3.6) and forwarded http requests (RFC 9112 §3.2.2), Upgrade included.
//
// Messages are read by net/http and forwarded by elazarl/goproxy, which is used
// for what it does well: recognising proxy requests, filters, and copying
// messages with trailers. The rest is here. CONNECT never reaches it: its
// hijack drops what a client sent ahead, it cannot half-close TLS, it puts dial
// errors into its answers and outlives a shutdown. A [tunnel.Forwarder] already
// does all of this well. A wrapper around its ResponseWriter would have to undo
// one relay to put another in its place. Upgrades are relayed here for the same
// reasons. Nothing is ever decrypted: goproxy's embedded CA stays unused.
//
// A Server owns the connections that it accepts and those that it keeps to
// destinations, until Serve returns. cmd/internal/sidecar makes it.
package httpsproxy
