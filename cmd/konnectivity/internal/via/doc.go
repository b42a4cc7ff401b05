// Package via holds the ways that the operator's tool can dial by: straight, through
// a sidecar, or to the server as a sidecar and as kube-apiserver do.
package via
