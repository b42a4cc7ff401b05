// Package legacy speaks the konnectivity packet protocol over gRPC, so that old
// agents, old servers and kube-apiserver's gRPC mode work with this suite. It
// has the protocol's three roles, and each gives or takes a tunnel.Conn, so
// that nothing above knows packets:
//
//   - AgentService accepts agents; each is an AgentPeer, a tunnel.Dialer.
//   - ConnectAgent is the agent's side of that; a tunnel.Forwarder serves what
//     the server asks for.
//   - ProxyService accepts frontends (kube-apiserver); a tunnel.Forwarder
//     serves them.
//
// The facts are from konnectivity-client's client.proto and, in
// kubernetes-sigs/apiserver-network-proxy, pkg/server/server.go and
// pkg/agent/client.go.
//
// # What the protocol lacks
//
// There is no credit. The connections of one agent share one gRPC stream, so a
// connection whose reader is slow is buffered within Limits, and reset when
// that does not suffice; its neighbours never wait for it.
//
// There is no half-close either: CLOSE_REQ, toward the agent, and CLOSE_RSP,
// away from it, end both directions. What each role makes of CloseWrite is
// told there.
package legacy
