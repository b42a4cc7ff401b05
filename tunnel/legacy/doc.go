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
// Sessions, peers and services own their connections and goroutines; the gRPC
// servers and connections are their callers' (server/grpc.go, agent/legacy.go).
//
// # What the protocol lacks
//
// There is no credit. The connections of one agent share one gRPC stream, so
// what a connection holds is bounded here (Limits, recvQueue):
//
//   - A reader that takes nothing while its connection is full is reset after
//     stallTimeout (CodeStalled). It costs its neighbours one pause, of 5 s at
//     most.
//   - A connection may hold a quarter of what is left of the budget, at least
//     connBuffer. For a reader that moves, but slower than data comes, the
//     stream pauses until it has made room: there is no other way to slow the
//     sender, and to reset it would cut every download that is slower than its
//     source. At twice its share it is reset.
//
// There is no half-close either: CLOSE_REQ, toward the agent, and CLOSE_RSP,
// away from it, end both directions. What the roles make of CloseWrite is said
// at AgentPeer, and at opened and served, which are its two ends. Between our
// own peers metadata (konnectivity-half-close) agrees on a better meaning.
package legacy
