// Package via holds the ways by which the operator's tool can dial: directly, through
// a sidecar, or to the server as a sidecar and as kube-apiserver do.
//
// The commands dial, bench and check call it, and so do quickstart's checks.
package via
