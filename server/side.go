package server

import "konnectivity/server/tenant"

// side is whom a port is for.
type side int

const (
	agents side = iota
	clients
	sides
)

func (s side) String() string { return [sides]string{"agents", "clients"}[s] }

// cas are the CAs that a tenant's peers on one side must be of; nil: of none.
func (s side) cas(t *tenant.Spec) *tenant.CAs {
	if s == agents {
		return t.Agents
	}
	return t.Clients
}

// issuers find the tenants of those peers on that side who are told by certificate;
// nil: none is.
func (s side) issuers(table *tenant.Table) *tenant.Issuers {
	if s == agents {
		return table.AgentsBy()
	}
	return table.ClientsBy()
}
