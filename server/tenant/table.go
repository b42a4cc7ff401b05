package tenant

import (
	"slices"
	"strings"
	"sync"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/tunnel"
)

// States of a tenant.
const (
	StateServing = "serving" // as its files have it
	StateStale   = "stale"   // its files cannot be used as they are now; it is served as it was
	StateBroken  = "broken"  // its files cannot be used; its peers are refused
)

// Status is a tenant as an operator sees it.
type Status struct {
	Name        string
	State       string
	Error       string    // a sentence that names file and field; "" while it is served as its files have it
	Told        string    // Error for the tenant's own reader: it names no other tenant
	Since       time.Time // when the present spec came into force, or the failure began
	ServerNames []string
	Spec        *Spec // nil: broken
}

// Table is which tenants there are at one moment. It does not change, and may be
// used by any number of goroutines.
type Table struct {
	byName  map[string]*Spec             // by server name
	refused map[string]string            // server names of tenants that are broken or gone, and whose they were last
	tenants map[string]*Spec             // by their own name
	readers map[admin.TokenDigest]string // names of tenants; "": of several

	owned owners // what tenants claim

	agentsBy, clientsBy *Issuers

	indexed   sync.Once // readersBy, when a reader first shows a certificate
	readersBy *Issuers

	states []Status // by name
	closed bool     // all server names that no tenant has are refused
	listed bool     // it is known which tenants there are
}

// Find is the tenant that a server name belongs to. known without a tenant is a
// name whose tenant is broken or gone: a peer that asks for it must be refused, and
// never served as if it had asked for no name.
func (t *Table) Find(serverName string) (tenant *Spec, known bool) {
	if serverName == "" {
		return nil, false
	}
	name := tunnel.CanonicalHost(serverName)
	if tenant := t.byName[name]; tenant != nil {
		return tenant, true
	}
	_, refused := t.refused[name]
	return nil, refused || t.closed
}

// Others reports whether a server name belongs to a tenant other than the given one, or
// belonged to one last, as far as is remembered.
func (t *Table) Others(serverName, tenant string) bool {
	spec, known := t.Find(serverName)
	if spec != nil {
		return spec.Name != tenant
	}
	return known && t.refused[tunnel.CanonicalHost(serverName)] != tenant
}

// Tenant returns the spec of a served tenant; nil: none has that name.
func (t *Table) Tenant(name string) *Spec { return t.tenants[name] }

// Tenants are those that are served, by name. The map must not be modified.
func (t *Table) Tenants() map[string]*Spec { return t.tenants }

// AgentsBy finds the tenant of an agent that is told by certificate; nil: none is.
func (t *Table) AgentsBy() *Issuers { return t.agentsBy }

// ClientsBy is the same for clients.
func (t *Table) ClientsBy() *Issuers { return t.clientsBy }

// Closed says whether all names that are no tenant's are refused, since more
// were served than are remembered.
func (t *Table) Closed() bool { return t.closed }

// Listed says whether it is known which tenants there are. A server that was
// started while the API of their Secrets was away knows of none at first.
func (t *Table) Listed() bool { return t.listed }

// State returns the state of a tenant, served or broken; false: none has that name.
func (t *Table) State(name string) (Status, bool) {
	i, found := slices.BinarySearchFunc(t.states, name, func(s Status, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return Status{}, false
	}
	return t.states[i], true
}

// States are all tenants, also those that are broken, by name. The slice must
// not be modified.
func (t *Table) States() []Status { return t.states }
