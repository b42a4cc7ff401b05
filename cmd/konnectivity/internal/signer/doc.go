// Package signer issues the certificates of agents that run as pods, by
// PodCertificateRequests of Kubernetes 1.37: kubelet makes the key of each pod, keeps its
// certificate fresh, and asks; the API vouches for pod, service account and node; the
// signer decides and signs. It also publishes the CAs of servers in a ClusterTrustBundle,
// so that no Secret needs to be copied to agents.
//
// A request is in one of three states: pending, Issued or Denied. The last two are final,
// and kept by the API. What cannot be signed for a reason of the signer's, such as a CA
// that is about to expire, stays pending. The signer keeps no state of its own, so several
// may run side by side: of two answers the API takes the first.
package signer
