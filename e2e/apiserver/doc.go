// Package apiserver shows a real kube-apiserver, on a real etcd, at work
// through the built programs: logs, exec, aggregated APIs and webhooks go by
// the tunnel, and servers and agents authenticate and count each other by the
// same API, with the roles and the very arguments of the manifests.
//
// The data plane's listeners take connections from agents only: see zone.
//
// kube-apiserver, kubectl, kubeadm and etcd come from the module in programs, so that
// they are compiled with the dependencies they were released with. `make
// e2e-apiserver` builds them and runs the tests.
package apiserver
