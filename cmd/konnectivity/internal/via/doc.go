// Package via opens all connections of the operator's tool: directly, through a sidecar,
// or to the server as sidecars and kube-apiserver do. It also identifies the program at an
// address that speaks another protocol than expected.
//
// The commands dial, bench and check call it, and so do quickstart's checks.
package via
