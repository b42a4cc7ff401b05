// Package kubeapi is a client of the Kubernetes API for the few resources that the suite
// uses, in JSON, over client-go's HTTP transport. client-go's own clients, and its reader of
// kubeconfigs, link the machinery of several encodings and of every kind of object: a fifth
// of a program file, and more memory of a small process than all its work.
//
// Agents read leases by it, and sidecars Services (package hosted); servers write leases, have
// tokens reviewed, and watch the Secrets of tenants, each of which may have an API of its own
// (Access). It owns HTTP connections to the API, but those for Services.
package kubeapi
