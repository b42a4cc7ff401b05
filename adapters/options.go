package adapters

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/adapters/resolve"
	"konnectivity/adapters/uplink"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// Options is everything an Adapter is made of. The zero value of a field means
// its default; only Server.Address and Server.TLS have none.
type Options struct {
	Server ServerOptions // the konnectivity server
	Hosted HostedOptions // the hosted cluster, for resolving names in it
	Direct DirectOptions // what does not go through the tunnel
	SOCKS5 ResolvePolicy // how the SOCKS5 front resolves names
	HTTPS  HTTPSOptions  // the customer's proxies, for the HTTP(S) front

	// Self says whether a client that asks for address means this process, which
	// SOCKS5, Connect and Straight then refuse, whatever way it would go. The HTTP
	// front judges plain requests by itself. nil: none does.
	Self func(address string) bool

	dialServer  tunnel.Dialer // through the tunnel; default: by Server
	proxyCADirs []string      // default defaultProxyCADirs; tests have none
	lookupTime  time.Duration // bounds each step of a lookup; 0: its package's default

	Log        logrus.FieldLogger    // nil discards
	Registerer prometheus.Registerer // nil: metrics are kept, but registered nowhere
}

// See package uplink for what these mean.
type (
	ServerOptions = uplink.Options
	ClientTLS     = uplink.ClientTLS
)

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
// (docs/sidecars.md, "How a name becomes an address"). Services of the hosted
// cluster are always looked up first; without GuestDNS the system resolver is
// asked for the rest.
type ResolvePolicy struct {
	Disabled           bool // leave every name to the agent
	GuestDNS           bool // ask the hosted cluster's DNS through the tunnel
	ManagementFallback bool // when guest DNS fails, use the system resolver and go direct; needs GuestDNS
}

// DirectOptions says which connections do not go through the tunnel.
type DirectOptions struct {
	CloudAPIs bool     // --connect-directly-to-cloud-apis: cloudSuffixes go direct
	Suffixes  []string // --direct-suffix: these go direct, whatever CloudAPIs says

	// env looks up the pod's HTTPS_PROXY and NO_PROXY (and their lower-case
	// forms), which the direct path honours; default os.Getenv.
	env func(name string) string

	// Refuse is asked before every direct TCP connection; true refuses it.
	// The sidecars give their own listeners here, so that a request for
	// themselves does not loop. nil allows all.
	Refuse func(netip.AddrPort) bool

	// lookup is the system resolver; default net.DefaultResolver.
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

	// dialTCP makes direct connections; default net.Dialer.
	dialTCP func(ctx context.Context, network, address string) (net.Conn, error)
}

// HTTPSOptions are the customer's proxies. URLs may be http:// or https://, with
// user and password; one without a scheme is taken as http.
type HTTPSOptions struct {
	HTTPProxy  string // for plain forwarded requests
	HTTPSProxy string // for CONNECT
	NoProxy    string // names, suffixes, CIDRs, host:port, "*", comma-separated; these go straight through the tunnel

	// CACertPaths are PEM bundles, or directories of them, trusted beside the
	// system roots for https:// proxies; followed live. Missing ones are
	// skipped until they appear. The usual directories are always added.
	CACertPaths []string
}

// DefaultGuestDNSService is where OpenShift's DNS is.
const DefaultGuestDNSService = "openshift-dns/dns-default"

// defaultProxyCADirs are where distributions and HyperShift's manifests put
// bundles. The system's own roots come from the first two, so to name these
// again costs nothing. Of the third only the bundle for TLS is taken: beside it
// lie those of CAs that are trusted for mail or code alone.
func defaultProxyCADirs() []string {
	return []string{"/etc/pki/tls/certs", "/etc/ssl/certs", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"}
}

// OptionError is why New refuses an option.
type OptionError struct {
	Option string // the field's path within Options, such as "HTTPS.HTTPProxy"
	Err    error  // the fault, and the form that is wanted; holds no secret
}

// Error implements error.
func (e *OptionError) Error() string { return e.Option + ": " + e.Err.Error() }

// Unwrap returns the fault, for callers that know the option by another
// name.
func (e *OptionError) Unwrap() error { return e.Err }

// guestDNS splits HostedOptions.GuestDNSService.
func (o HostedOptions) guestDNS() (namespace, name string, err error) {
	text := cmp.Or(o.GuestDNSService, DefaultGuestDNSService)
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || !resolve.IsLabel(namespace) || !resolve.IsLabel(name) {
		return "", "", fmt.Errorf("want NAMESPACE/NAME, got %q", text)
	}
	return namespace, name, nil
}

func (o Options) withDefaults() Options {
	o.Log = cmp.Or[logrus.FieldLogger](o.Log, logging.Silent())
	o.Server.Log = cmp.Or(o.Server.Log, o.Log)
	if o.proxyCADirs == nil {
		o.proxyCADirs = defaultProxyCADirs()
	}
	if o.Direct.env == nil {
		o.Direct.env = os.Getenv
	}
	if o.Direct.Refuse == nil {
		o.Direct.Refuse = func(netip.AddrPort) bool { return false }
	}
	return o
}
