package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/policy"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/lease"
	"konnectivity/server/registry"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// DefaultKeepalive and keepaliveTimeout together notice a dead peer within
	// 20 s; upstream's hour lets dead agents be picked for an hour.
	DefaultKeepalive = 10 * time.Second
	keepaliveTimeout = 8 * time.Second

	// DefaultGrace is how long open connections may go on after a server was
	// told to stop. Kubernetes kills a pod 30 s after it asked it to end, and what
	// is left when they are over takes a moment.
	DefaultGrace = 25 * time.Second
)

// Listener is where connections come from.
type Listener struct {
	net.Listener

	// TLS makes the configuration that offers these protocols by ALPN, such as tlsreload's
	// Source.ServerFor: choose leads handshakes to the certificates and CAs of Options.Tenants;
	// nil: there are none. A nil TLS serves without it (unix sockets).
	TLS func(choose tlsreload.Choose, nextProtos ...string) *tls.Config

	// Recheck judges the certificate of a peer of the server's own cluster, followed by its
	// intermediates, which was verified when it connected, such as tlsreload's
	// Source.Recheck. Server.TrustChanged tells of changes. nil: it stays good.
	Recheck func(chain []*x509.Certificate) error

	// Proxies are load balancers in front of the listener that begin each
	// connection with a PROXY protocol header. Not without TLS.
	Proxies admission.Networks
}

// Options are what a server is made of. Those without a comment on their zero
// value must be given.
type Options struct {
	ID string // unique among the servers

	// Count is how many servers there are; 0 means 1. Leases, where kept,
	// know better.
	Count int

	Clients []Listener   // at least one
	Agents  []Listener   // at least one
	Health  net.Listener // nil: none
	Admin   net.Listener // nil: none

	// AdminTLS makes the configuration of Admin as Listener.TLS does; nil: it
	// is plain HTTP.
	AdminTLS func(choose tlsreload.Choose, nextProtos ...string) *tls.Config

	// AdminToken returns the operator's token at this moment, and AdminTrusts reports
	// whether a certificate, followed by its intermediates, is the operator's. Admin
	// shows all to requests with either. Both nil: Admin shows all to all.
	AdminToken  func() admin.TokenDigest
	AdminTrusts func(chain []*x509.Certificate) bool // not without AdminTLS

	// Which protocols clients are served; all three by default. Links exist
	// only over TLS.
	NoConnect, NoGRPC, NoLink bool

	// AgentsNeedLink refuses agents by gRPC, with which there is no flow
	// control. Not together with NoLink.
	AgentsNeedLink bool

	Strategies []registry.Strategy // nil: default alone
	Tokens     *auth.TokensConfig  // agents' tokens are reviewed; nil: none are asked for
	Claims     *auth.Claims        // what agents may claim; nil: anything
	OwnIDs     bool                // agents' ids must be names of their certificates

	// ClientTokens are tokens of clients of the server's own cluster, which need no
	// certificate then, if the listener's TLS lets them in without; nil: they do.
	ClientTokens *auth.TokensConfig

	// AccessReviews says, beside the rules, which new connections each client may make;
	// nil: the rules alone do.
	AccessReviews auth.AccessReviews

	Policy     *policy.Policy   // nil: only metadata addresses are denied
	PolicyFile *policyfile.Live // nil: none; its caller runs it
	Leases     *lease.Config    // nil: none

	// Tenants are further clusters that are served by name, apart from each
	// other and from the server's own, whose settings are those above; nil:
	// none. The server runs it. TenantTokens is how a tenant's tokens are
	// reviewed; it uses no network, and must be given if Tenants is.
	Tenants      *tenant.Dir
	TenantTokens func(*tenant.Tokens) *auth.TokensConfig

	// TenantListener begins to listen at a place of one tenant: with TLS at a port,
	// without TLS at a socket. It is called for all places of a side at once, and the
	// slowest holds up the rest of that side; nil: tenants have no addresses.
	TenantListener func(tenant.Address) (Listener, error)

	Peering *Peering // nil: it forwards to no other server

	// APIServers are HOST:PORT of the Kubernetes API server of the server's own cluster,
	// for its agents to reach; none: they do not. Tenants have their own.
	APIServers []string

	// ResumeWindow is how long a connection waits for a link to go on by when
	// its own is lost; 0 or less: it does not wait and is lost, too.
	ResumeWindow time.Duration

	Settle          time.Duration // once agents of a new cluster serve, how long dials wait for one that serves them; 0: they do not
	DialTimeout     time.Duration // 0: tunnel.DefaultDialTimeout
	Keepalive       time.Duration // of agents; 0: DefaultKeepalive
	ClientKeepalive time.Duration // 0: DefaultKeepalive
	Grace           time.Duration // 0: DefaultGrace; negative: none
	MaxConns        int           // per listener; 0: frontend.MaxConns
	Budget          *link.Budget  // for links; nil: link.NewBudget(0)
	AgentMemory     int64         // bytes that agents' connections may take by being there; 0: any number

	// Observers are told of every connection, beside the metrics.
	Observers []tunnel.Observer

	// Audit says why the audit log among them cannot be written, "" if it can; nil: there is
	// none.
	Audit func() string

	Profiles, ContentionProfiles bool // on the admin port

	// Background runs with the server and is joined, such as certificates'
	// reloading. Each must end when its context does.
	Background []func(context.Context)

	Log      logrus.FieldLogger
	Registry interface {
		prometheus.Registerer
		prometheus.Gatherer
	}
}

// listeners are those of a side.
func (o *Options) listeners(side side) []Listener {
	if side == agents {
		return o.Agents
	}
	return o.Clients
}

func (o *Options) setDefaults() error {
	switch {
	case o.ID == "":
		return errors.New("a server needs an id")
	case len(o.Clients) == 0 || len(o.Agents) == 0:
		return errors.New("a server needs a listener for clients and one for agents")
	case o.Log == nil || o.Registry == nil:
		return errors.New("a server needs a log and a metrics registry")
	}
	if len(o.Strategies) == 0 {
		o.Strategies = []registry.Strategy{registry.Default}
	}
	o.Count = max(o.Count, 1)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	if o.Budget == nil {
		o.Budget = link.NewBudget(0)
	}
	return nil
}
