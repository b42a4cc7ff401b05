// Package kube drives the built programs by what kube-apiserver itself uses:
// its egress selector to dial, and its upgrade-aware proxy to pass requests on
// to kubelets. It is a module of its own, so that k8s.io/apiserver stays out of
// the product's.
package kube
