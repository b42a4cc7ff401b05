package agent

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/shares"
)

// CountSource says where the number of servers comes from.
type CountSource string

// The count sources; "" means CountDefault.
const (
	CountDefault CountSource = "default" // Leases where set, else what servers say
	CountMax     CountSource = "max"     // the larger of both
)

// Counter counts servers by other means than asking one of them.
type Counter interface {
	// Count returns how many servers there are, and false while it does not
	// know. It must not block.
	Count() (int, bool)
}

const (
	// DefaultSyncInterval is the first pause after a server could not be
	// reached (upstream cmd/agent/app/options).
	DefaultSyncInterval = time.Second
	// DefaultSyncIntervalCap is the longest pause (same source).
	DefaultSyncIntervalCap = 10 * time.Second
	// DefaultGrace is how long open connections may go on after the agent
	// was told to stop. Kubernetes kills a pod 30 s after it asked it to end, and
	// closing them takes a moment.
	DefaultGrace = 25 * time.Second
	// MaxIdentity bounds Identifiers, and the ids of servers that speak gRPC, in bytes each.
	// Both travel as gRPC metadata, which servers cap at 8 KiB and more for all of it.
	MaxIdentity = 4096
)

// Port is a port of this process that the next agent may need.
type Port interface {
	Yield()   // frees the port
	Reclaim() // takes it back, unless another process has it
}

// Options are what an Agent needs. Required are ID, Servers, TLS and Dialer. The flags of
// konnectivity-agent refuse what cannot work.
type Options struct {
	// ID is this agent's id, unique among agents; at most link.MaxID bytes.
	ID string
	// Identifiers is a URL query: servers route to this agent by it. See
	// ValidateIdentifiers.
	Identifiers string

	// Servers are host:port pairs. Every address a host resolves to is
	// dialed, and dialed again until all servers behind them are known.
	Servers []string
	// ServerName is asked of every server, and must be in its certificate; "":
	// the host that is dialed.
	ServerName string
	// TLS makes the client config for a server name; (*tlsreload.Source).Client
	// fits. It is called once per server name and set of protocols.
	TLS func(serverName string, nextProtos ...string) *tls.Config
	// Trusted is what TLS verifies servers by, for errors: (tlsreload.Files).Trusted fits.
	Trusted string
	// ALPN is offered beside the protocols this suite speaks.
	ALPN []string
	// Link says whether the native link is used; "" is link.Auto.
	Link link.Mode
	// Token returns the bearer token; it is called at every connect. nil: none.
	Token func() (string, error)
	// Proxy says through which HTTP proxy a server is reached (the URL given is
	// https://host:port), as golang.org/x/net/http/httpproxy does. nil: none.
	Proxy func(*url.URL) (*url.URL, error)

	// Budget bounds the memory of all links; nil means an automatic one.
	Budget *link.Budget
	// limits bound what connections over the packet protocol may hold, all of this agent's
	// together; fill sets their Budget.
	limits legacy.Limits

	// Dialer reaches destinations; an *egress.Dialer. If it has an Allow as that has, it
	// judges connections that are resumed.
	Dialer tunnel.Dialer
	// DialTimeout bounds a dial to a destination; 0 means
	// tunnel.DefaultDialTimeout.
	DialTimeout time.Duration

	// MaxServers is to how many servers the agent is connected where there are more; 0:
	// to all. The others reach it by servers that forward.
	MaxServers int

	// Leases counts servers by their leases; nil where only servers are asked.
	Leases Counter
	// CountSource says how Leases and what servers say are combined.
	CountSource CountSource

	SyncInterval    time.Duration // 0 means DefaultSyncInterval
	SyncIntervalCap time.Duration // 0 means DefaultSyncIntervalCap
	// SyncForever looks for more servers every SyncIntervalCap. Without it the
	// agent looks less often: old servers tell of new ones only when they are
	// dialed, new ones by themselves.
	SyncForever bool
	// Keepalive is the silence after which a server is asked whether it is
	// alive; it has keepaliveGrace more to answer. 0: asked after 5 s, given up
	// after 15 s of silence.
	Keepalive time.Duration
	// Grace is how long open connections may go on after Run's context ended;
	// 0 means DefaultGrace, negative none at all.
	Grace time.Duration

	// ResumeWindow is how long a connection whose link is lost waits for another
	// link; 0 or less: it is lost too.
	ResumeWindow time.Duration

	// Handover passes connections from the agent before, and to the next; nil: they
	// end with the agent.
	Handover *Handover

	// Store passes connections to the next process of a systemd service, and from the one
	// before; nil: there is none.
	Store *Store

	// Lanes is how many connections a link has at most, from 1 to
	// lanes.MaxLanes; 0 means 1.
	Lanes int

	// API are where the node's programs reach their API server by a link; none: they do not.
	// Run closes them.
	API []net.Listener

	// BesideAPI has the agent offer itself to servers, at their port for clients, as one
	// beside the API server: its Dialer reaches that. Not together with API.
	BesideAPI bool

	// Observers are told of every connection, beside the metrics.
	Observers []tunnel.Observer

	Log        logrus.FieldLogger    // nil: silent
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
}

// CheckMaxServers checks Options.MaxServers.
func CheckMaxServers(n int) error {
	if n < 0 || n > maxServers {
		return fmt.Errorf("want a number from 0 (all) to %d", maxServers)
	}
	return nil
}

// fill fills in defaults.
func (o *Options) fill() {
	if o.SyncInterval <= 0 {
		o.SyncInterval = DefaultSyncInterval
	}
	if o.SyncIntervalCap <= 0 {
		o.SyncIntervalCap = max(DefaultSyncIntervalCap, o.SyncInterval)
	}
	if o.Budget == nil {
		o.Budget = link.NewBudget(0)
	}
	o.limits.Budget = shares.NewBudget(legacy.DefaultBudget)
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	o.Log = cmp.Or[logrus.FieldLogger](o.Log, logging.Silent())
	o.Registerer = cmp.Or[prometheus.Registerer](o.Registerer, prometheus.NewRegistry())
}
