package server

import (
	"net/http"

	"konnectivity/internal/admin"
	"konnectivity/internal/bearer"
	"konnectivity/internal/observe"
	"konnectivity/server/tenancy"
)

// login is who asks the admin port. A tenant's token shows that tenant alone. All
// is shown to the operator's token, and where there is none, to whoever has no
// token at all. Without either kind of tokens, nothing is looked at.
func (s *Server) login() admin.Login {
	if s.opts.AdminToken == nil && s.tenants == nil {
		return nil
	}
	return func(r *http.Request) (admin.Reader, bool) {
		token, given := bearer.Of(r)
		if !given {
			return admin.Reader{}, s.opts.AdminToken == nil
		}
		if s.tenants != nil {
			if t := s.tenants.now.Load().table.Reader(token); t != nil {
				return admin.Reader{Tenant: t.Name, Proven: true}, true
			}
		}
		return admin.Reader{Proven: true}, s.opts.AdminToken != nil && token.Is(s.opts.AdminToken())
	}
}

// adminMetrics shows each reader of the admin port what is for it.
func (s *Server) adminMetrics() http.Handler {
	all := observe.Metrics(s.gatherer())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := all
		if tenant := admin.ReaderOf(r.Context()).Tenant; tenant != "" {
			shown = observe.Metrics(s.gathererOf(tenant))
		}
		shown.ServeHTTP(w, r)
	})
}

// adminOf is what the admin API shows of one tenant.
func (s *Server) adminOf(name string) (admin.Source, bool) {
	state, found := s.tenants.now.Load().table.State(name)
	if !found {
		return admin.Source{}, false
	}
	return s.adminOfTenant(state), true
}

func (s *Server) adminOfTenant(state tenancy.Status) admin.Source {
	cl := s.tenants.cluster(state.Name)
	state.Error = state.Told
	return admin.Source{
		Component: "konnectivity-server", ID: s.opts.ID, Table: s.table, Tenant: state.Name,
		Tenants: func() []admin.Tenant { return []admin.Tenant{viewOf(state, cl)} },
		Peers: func() []admin.Peer {
			if cl == nil {
				return nil
			}
			return cl.addPeers(nil)
		},
		More: func(status *admin.Status) {
			status.ServerCount = s.serverCount()
			if cl == nil {
				return
			}
			status.Strategies = map[string]int{}
			for strategy, n := range cl.agents.Counts().By {
				status.Strategies[string(strategy)] = n
			}
		},
	}
}
