// Package cluster follows the README from a cluster to `kubectl logs` in two
// real ones, and takes the time: the control plane of the second runs as a pod of
// the first, and the second's node lets nothing in. kubelets, containerd, controllers,
// schedulers and kube-proxy are Kubernetes' own; dnsmasq stands in for CoreDNS,
// and a loop for the cloud that gives a Service of type LoadBalancer its address.
//
// All of it runs in namespaces of its own (network, mounts, processes), which
// needs root; nothing is left when it ends. `make e2e-cluster` builds the programs.
package cluster
