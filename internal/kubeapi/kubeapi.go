// Package kubeapi is a client of the Kubernetes API for the few resources that the suite
// uses, in JSON, by client-go's HTTP client with its credentials. client-go's own clients
// link every API group, and the machinery of several encodings, of fakes and of apply,
// which costs a small process more memory than all its work.
//
// Agents read leases by it; servers write them, have tokens reviewed, and watch
// the Secrets of tenants, each of which may have an API of its own (Access). It
// owns HTTP connections to the API.
package kubeapi
