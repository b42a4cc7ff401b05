package server

import "konnectivity/server/tenant"

// side is whom a port is for.
type side int

const (
	agents side = iota
	clients
	sides
	servers = sides // not a side of a cluster
)

func (s side) String() string { return [sides]string{"agents", "clients"}[s] }

// cas are the CAs of a tenant's peers on one side; nil: they need no certificate.
func (s side) cas(t *tenant.Spec) *tenant.CAs {
	if s == agents {
		return t.Agents
	}
	return t.Clients
}

// issuers find the tenants of a side's peers by certificate; nil: no tenant is
// recognised so.
func (s side) issuers(table *tenant.Table) *tenant.Issuers {
	if s == agents {
		return table.AgentsBy()
	}
	return table.ClientsBy()
}
