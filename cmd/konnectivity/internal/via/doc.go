// Package via holds the ways that the operator's tool can dial by: straight, through
// a sidecar, or to the server as a sidecar and as kube-apiserver do.
//
// The commands dial, bench and check call it, and the checks of quickstart.
package via
