package adapters

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
)

// Options is everything an Adapter is made of. The zero value of a field means
// its default; only Server.Address and Server.TLS have none.
type Options struct {
	Server ServerOptions // the konnectivity server
	Hosted HostedOptions // the hosted cluster, for resolving names in it
	Direct DirectOptions // what does not go through the tunnel
	SOCKS5 ResolvePolicy // how the SOCKS5 front resolves names
	HTTPS  HTTPSOptions  // the customer's proxies, for the HTTP(S) front

	Log        logrus.FieldLogger    // nil discards
	Registerer prometheus.Registerer // nil: metrics are kept, but registered nowhere
}

// Mode says whether the native link is spoken to the server.
type Mode string

// The modes of --link.
const (
	LinkAuto    Mode = "auto"    // link where the server has it, else HTTP CONNECT; the default
	LinkOff     Mode = "off"     // HTTP CONNECT only
	LinkRequire Mode = "require" // link only; an old server is an error
)

// ClientTLS makes TLS configurations for connections out of this process;
// *tlsreload.Source is one.
type ClientTLS interface {
	// Client returns a configuration that verifies serverName and offers
	// nextProtos. It is called once a target; it must follow reloads by
	// itself and keep a session cache.
	Client(serverName string, nextProtos ...string) *tls.Config
}

// ServerOptions says how the konnectivity server is reached.
type ServerOptions struct {
	Address    string    // host:port of the server's client port
	ServerName string    // name its certificate must have; default: the host of Address
	TLS        ClientTLS // our certificate and the server's CA
	Mode       Mode      // default LinkAuto

	// ConnectTimeout bounds reaching the server: name, TCP, TLS, HELLO.
	// Default DefaultConnectTimeout. A request's own context may be shorter.
	ConnectTimeout time.Duration

	// Software is named in the link's HELLO, as "konnectivity-socks5-proxy/1.2".
	Software string

	// Lookup resolves the server's name; default: the system resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// DialTCP makes the TCP connection; default: net.Dialer with keepalive.
	DialTCP func(ctx context.Context, network, address string) (net.Conn, error)
}

// HostedOptions says how names of the hosted cluster are found.
type HostedOptions struct {
	// Kubeconfig is the path of the hosted cluster's kubeconfig, re-read when
	// it changes. It need not exist yet. Empty: names are not looked up here
	// at all; they go through the tunnel as names and the agent resolves.
	Kubeconfig string

	// GuestDNSService is namespace/name of the Service of the hosted
	// cluster's DNS; default DefaultGuestDNSService.
	GuestDNSService string

	// PreferIPv4 puts a name's IPv4 addresses first (they come in the order
	// of the answer otherwise).
	PreferIPv4 bool
}

// ResolvePolicy says which steps of the resolver chain a front uses
// (COMPATIBILITY §6).
type ResolvePolicy struct {
	Disabled           bool // leave every name to the agent
	GuestDNS           bool // ask the hosted cluster's DNS through the tunnel
	ManagementFallback bool // when guest DNS fails, use the system resolver and go direct; needs GuestDNS
}

// DirectOptions says what goes direct instead of through the tunnel.
type DirectOptions struct {
	CloudAPIs bool     // --connect-directly-to-cloud-apis: DefaultDirectSuffixes go direct
	Suffixes  []string // --direct-suffix: these go direct, whatever CloudAPIs says

	// Env looks up the pod's HTTPS_PROXY and NO_PROXY (and their lower-case
	// forms), which the direct path honours; default os.Getenv.
	Env func(name string) string

	// Refuse is asked before every direct TCP connection; true refuses it.
	// The sidecars give their own listeners here, so that a request for
	// themselves does not loop. nil allows all.
	Refuse func(netip.AddrPort) bool
}

// HTTPSOptions are the customer's proxies. URLs may be http:// or https://, with
// user and password; one without a scheme is taken as http.
type HTTPSOptions struct {
	HTTPProxy  string // for plain forwarded requests
	HTTPSProxy string // for CONNECT
	NoProxy    string // names, suffixes, CIDRs, host:port, "*", comma-separated; these go straight through the tunnel

	// ManagementFallback is ResolvePolicy's, for this front; upstream has no
	// flag for it and neither does it default to on.
	ManagementFallback bool

	// CACertPaths are PEM bundles, or directories of them, trusted beside the
	// system roots for https:// proxies; followed live. Missing ones are
	// skipped until they appear. DefaultProxyCADirs are always added.
	CACertPaths []string
}

// Defaults and bounds.
const (
	// DefaultGuestDNSService is where OpenShift's DNS is.
	DefaultGuestDNSService = "openshift-dns/dns-default"

	// DefaultConnectTimeout leaves a request half of tunnel.DefaultDialTimeout
	// for the destination when the server is slow to reach.
	DefaultConnectTimeout = 5 * time.Second
)
