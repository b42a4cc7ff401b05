package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net/http"
	"slices"

	"konnectivity/internal/admin"
	"konnectivity/internal/observe"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/registry"
)

// login returns what tells the admin port's readers apart: by their token, else by
// their certificate. A tenant's shows that tenant alone, the operator's shows all. If
// the operator has neither, no token or certificate is needed to see all. nil: there
// are no tenants either, so nothing is checked.
func (s *Server) login() admin.Login {
	open := s.opts.AdminToken == nil && s.opts.AdminTrusts == nil
	if open && s.opts.Tenants == nil {
		return nil
	}
	return func(r *http.Request) (admin.Reader, bool) {
		if token, given := admin.TokenOf(r); given {
			return s.bearerOf(token)
		}
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 { // whose CA may be gone since the handshake
			return s.holderOf(r.TLS.PeerCertificates)
		}
		return admin.Reader{}, open
	}
}

// bearerOf returns the reader with a token; false: it is unknown.
func (s *Server) bearerOf(token admin.TokenDigest) (admin.Reader, bool) {
	if name := s.tenants.now.Load().table.Reader(token); name != "" {
		return admin.Reader{Tenant: name, Proven: true}, true
	}
	return admin.Reader{Proven: true}, s.opts.AdminToken != nil && token.Is(s.opts.AdminToken())
}

// holderOf returns the reader with a certificate, followed by its intermediates; false:
// it is unknown.
func (s *Server) holderOf(chain []*x509.Certificate) (admin.Reader, bool) {
	if s.opts.AdminTrusts != nil && s.opts.AdminTrusts(chain) {
		return admin.Reader{Proven: true}, true
	}
	if t := s.tenants.now.Load().table.ReaderBy(chain); t != nil {
		return admin.Reader{Tenant: t.Name, Proven: true}, true
	}
	return admin.Reader{}, false
}

// errNoReader refuses a certificate on the admin port.
var errNoReader = errors.New("neither the operator's CA nor that of one tenant's clients has issued it")

// adminTLS returns the TLS configuration of the admin port; nil: it has none. Where
// certificates identify readers, it asks for one, which is optional: tokens identify
// readers, too.
func (s *Server) adminTLS() *tls.Config {
	const proto = "http/1.1"
	switch {
	case s.opts.AdminTLS == nil:
		return nil
	case s.opts.AdminTrusts == nil && s.opts.Tenants == nil:
		return s.opts.AdminTLS(nil, proto)
	}
	reader := &tlsreload.Guest{Key: "reader", Bare: true, Verify: func(chain []*x509.Certificate) error {
		if _, known := s.holderOf(chain); !known {
			return errNoReader
		}
		return nil
	}}
	return s.opts.AdminTLS(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) { return reader, nil }, proto)
}

// adminMetrics serves all metrics to the operator, and a tenant's to its readers.
func (s *Server) adminMetrics() http.Handler {
	all := observe.Metrics(s.gatherer())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := all
		if name := admin.ReaderOf(r.Context()).Tenant; name != "" {
			shown = observe.Metrics(s.gathererOf(name))
		}
		shown.ServeHTTP(w, r)
	})
}

// adminOf is what the admin API shows of one tenant.
func (s *Server) adminOf(name string) (admin.Source, bool) {
	v := s.tenants.now.Load()
	state, found := v.table.State(name)
	if !found {
		return admin.Source{}, false
	}
	cl := v.cluster(name)
	state = v.status(state)
	state.Error = state.Told
	return admin.Source{
		Component: "konnectivity-server", ID: s.opts.ID, Table: s.table, Tenant: name,
		Tenants: func() []admin.Tenant { return []admin.Tenant{viewOf(state, cl)} },
		Peers: func() []admin.Peer {
			if cl == nil {
				return nil
			}
			return cl.addPeers(nil)
		},
		More: func(status *admin.Status) {
			var agents registry.Counts // of a tenant that is not served, none
			if cl != nil {
				agents = cl.agents.Counts()
			}
			s.moreForAll(status, agents, slices.Collect(maps.Keys(agents.By)))
		},
	}, true
}
