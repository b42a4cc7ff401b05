package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/agent"
	"konnectivity/internal/cli"
	"konnectivity/internal/logging"
	"konnectivity/internal/policy"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// flags are the command line, upstream's flags (cmd/agent/app/options) first.
type flags struct {
	cert, key, ca string
	peers         cli.PeerFlags

	hosts []string
	port  int
	name  string
	alpn  []string
	link  string

	id, identifiers string
	tokenPath       string

	syncInterval, syncCap, probeInterval time.Duration
	keepalive                            time.Duration
	syncForever                          bool

	countLeases                             bool
	leaseNamespace, leaseSelector           string
	countSource, kubeconfig, apiContentType string

	allow, deny []string
	egressProxy bool
	dialTimeout time.Duration
	grace       time.Duration

	resumeWindow time.Duration
	lanes        int
	budgetMiB    int64

	healthHost, adminHost string
	healthPort, adminPort int
	profiling, contention bool

	warnOnChannelLimit bool
	xfrChannelSize     int

	logging logging.Flags
	set     *pflag.FlagSet
}

// leastSync keeps an agent that has no server from doing nothing but look for one.
const leastSync = 10 * time.Millisecond

func (f *flags) addTo(cmd *cobra.Command) {
	cli.AddFlags(cmd, "Servers", f.addServers)
	cli.AddFlags(cmd, "Identity", f.addIdentity)
	cli.AddFlags(cmd, "Number of servers", f.addCounting)
	cli.AddFlags(cmd, "Destinations", f.addDestinations)
	cli.AddFlags(cmd, "Health, metrics and profiling", f.addObservation)
	cli.AddFlags(cmd, "Logging", f.logging.AddTo)
	cli.AddFlags(cmd, "Accepted for compatibility", f.addDeprecated)
	f.set = cmd.Flags()
}

func (f *flags) addServers(set *pflag.FlagSet) {
	set.StringSliceVar(&f.hosts, "proxy-server-host", []string{"127.0.0.1"}, "name or address of one or more servers; every address that a name resolves to is dialed; HOST:PORT overrides --proxy-server-port")
	set.IntVar(&f.port, "proxy-server-port", 8091, "port of the servers")
	set.StringVar(&f.name, "server-name", "", "name to ask the servers for in TLS (SNI), which their certificates must have (default: the host of --proxy-server-host)")
	set.StringVar(&f.ca, "ca-cert", "", "CA file for verifying the servers' certificates (default: the system's CAs)")
	f.peers.AddTo(set, "servers")
	set.StringSliceVar(&f.alpn, "alpn-proto", nil, "additional ALPN protocols to offer, for load balancers that route by them")
	set.StringVar(&f.link, "link", string(link.Auto), "native link: auto (if the server supports it), off (gRPC only) or require")
	set.DurationVar(&f.syncInterval, "sync-interval", agent.DefaultSyncInterval, "pause before the first retry when a server cannot be reached")
	set.DurationVar(&f.syncCap, "sync-interval-cap", agent.DefaultSyncIntervalCap, "longest pause between retries")
	set.BoolVar(&f.syncForever, "sync-forever", false, "look for more servers every --sync-interval-cap; without it the agent looks less often, which is usually enough")
	set.DurationVar(&f.keepalive, "keepalive-time", 0, "silence after which a server is pinged; it has 10s to answer; less than 1s means 1s (default: pinged after 5s, given up after 15s)")
	set.DurationVar(&f.grace, "graceful-shutdown-timeout", agent.DefaultGrace, "how long open connections may go on after the first SIGTERM; 0 cuts them at once")
	set.DurationVar(&f.resumeWindow, "resume-window", resume.DefaultWindow, "how long a connection that has lost its link waits to be resumed over another, to any server; at most 10m; 0: it ends with its link")
	set.IntVar(&f.lanes, "link-lanes", lanes.DefaultMax, fmt.Sprintf("how many TCP connections a link to a server may have where one is not enough: on a far line, or for more bulk than one core decrypts; at most %d; 1: only one", lanes.MaxLanes))
	set.Int64Var(&f.budgetMiB, "memory-budget-mib", 0, "memory for bytes in flight over links, in MiB (default: a quarter of the memory limit, at most 256)")
}

func (f *flags) addIdentity(set *pflag.FlagSet) {
	set.StringVar(&f.cert, "agent-cert", "", "certificate file to authenticate with")
	set.StringVar(&f.key, "agent-key", "", "private key file of --agent-cert")
	set.StringVar(&f.tokenPath, "service-account-token-path", "", "file with a token to authenticate with; reread for every connection")
	set.StringVar(&f.id, "agent-id", "", "unique id of this agent (default: $PROXY_AGENT_ID, or a new uuid)")
	set.StringVar(&f.identifiers, "agent-identifiers", "", "destinations for which servers pick this agent, URL-encoded, e.g. host=node1&ipv4=192.0.2.1&cidr=192.0.2.0/24&default-route=true")
}

func (f *flags) addCounting(set *pflag.FlagSet) {
	set.StringVar(&f.countSource, "server-count-source", string(agent.CountDefault), "default (leases where --count-server-leases is set, else what servers say) or max (the larger of both)")
	set.BoolVar(&f.countLeases, "count-server-leases", false, "count servers by their leases in the Kubernetes API")
	set.StringVar(&f.leaseNamespace, "lease-namespace", "kube-system", "namespace of the leases")
	set.StringVar(&f.leaseSelector, "lease-label-selector", "k8s-app=konnectivity-server", "label selector of the leases")
	set.StringVar(&f.leaseSelector, "lease-label", "k8s-app=konnectivity-server", "older name of --lease-label-selector; the later of the two on the command line counts")
	_ = set.MarkHidden("lease-label") // fails only for a name that is not defined
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file for the leases (default: the pod's service account)")
	set.StringVar(&f.apiContentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", "content type of requests to the Kubernetes API")
}

func (f *flags) addDestinations(set *pflag.FlagSet) {
	set.StringSliceVar(&f.allow, "allow-destination", nil, "CIDR, address or host glob, with :PORT or :FIRST-LAST where ports matter; repeatable; if any is given, nothing else may be dialed. Cloud metadata addresses are denied unless a rule names them")
	set.StringSliceVar(&f.deny, "deny-destination", nil, "the same, for what may never be dialed; wins over --allow-destination; names are checked by their resolved addresses")
	set.DurationVar(&f.dialTimeout, "dial-timeout", tunnel.DefaultDialTimeout, "how long a dial to a destination may take, name resolution included")
	set.BoolVar(&f.egressProxy, "egress-proxy-from-environment", false, "dial destinations through the proxy in HTTPS_PROXY unless NO_PROXY matches")
}

func (f *flags) addObservation(set *pflag.FlagSet) {
	set.StringVar(&f.healthHost, "health-server-host", "", "address for /healthz, /readyz and /metrics (default: all)")
	set.IntVar(&f.healthPort, "health-server-port", 8093, "port for the same")
	set.StringVar(&f.adminHost, "admin-bind-address", "127.0.0.1", "address for the status page /, its API /api/v1/ and /debug/pprof; empty: all")
	set.IntVar(&f.adminPort, "admin-server-port", 8094, "port for the same; 0: off")
	set.BoolVar(&f.profiling, "enable-profiling", false, "serve /debug/pprof on the admin port")
	set.BoolVar(&f.contention, "enable-contention-profiling", false, "profile lock contention too; needs --enable-profiling")
}

func (f *flags) addDeprecated(set *pflag.FlagSet) {
	set.DurationVar(&f.probeInterval, "probe-interval", time.Second, "no effect: a broken connection is noticed at once, a silent one after --keepalive-time")
	set.IntVar(&f.xfrChannelSize, "xfr-channel-size", 150, "no effect: connections are limited in bytes")
	set.BoolVar(&f.warnOnChannelLimit, "warn-on-channel-limit", false, "no effect: there is no such channel")
}

// notes are sentences about flags that were given and do not do what their name
// says.
func (f *flags) notes() []string {
	var notes []string
	for name, note := range map[string]string{
		"probe-interval":        "--probe-interval has no effect: a broken connection is noticed at once, a silent one by --keepalive-time",
		"xfr-channel-size":      "--xfr-channel-size has no effect: what a connection may hold is bounded in bytes",
		"warn-on-channel-limit": "--warn-on-channel-limit is deprecated and has no effect",
		"lease-label":           "--lease-label is deprecated: use --lease-label-selector",
	} {
		if f.set.Changed(name) {
			notes = append(notes, note)
		}
	}
	return notes
}

// validate returns a *cli.UsageError about the first flag that cannot be meant.
// It touches files only to see that they are there, which is no usage error.
func (f *flags) validate() error {
	for _, check := range []func() error{f.checkNumbers, f.checkCombinations, f.checkValues, f.checkFiles} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (f *flags) checkNumbers() error {
	health, admin := f.ports()
	if err := cli.CheckPorts(cli.Port{Flag: "proxy-server-port", Number: f.port, Least: 1, Unused: true}, health, admin); err != nil {
		return err
	}
	for name, d := range map[string]time.Duration{
		"sync-interval": f.syncInterval, "sync-interval-cap": f.syncCap, "probe-interval": f.probeInterval, "dial-timeout": f.dialTimeout,
	} {
		if d <= 0 {
			return cli.Usagef("--%s=%v: must be longer than 0", name, d)
		}
	}
	for name, d := range map[string]time.Duration{"keepalive-time": f.keepalive, "graceful-shutdown-timeout": f.grace} {
		if d < 0 {
			return cli.Usagef("--%s=%v: must not be negative", name, d)
		}
	}
	if f.syncInterval < leastSync {
		return cli.Usagef("--sync-interval=%v: must be at least %v", f.syncInterval, leastSync)
	}
	if err := resume.CheckWindow(f.resumeWindow); err != nil {
		return cli.Usagef("--resume-window=%v: %v", f.resumeWindow, err)
	}
	if err := lanes.CheckMax(f.lanes); err != nil {
		return cli.Usagef("--link-lanes=%d: %v", f.lanes, err)
	}
	if f.xfrChannelSize <= 0 {
		return cli.Usagef("--xfr-channel-size=%d: must be greater than 0", f.xfrChannelSize)
	}
	if err := link.CheckBudgetMiB(f.budgetMiB); err != nil {
		return cli.Usagef("--memory-budget-mib=%d: %v", f.budgetMiB, err)
	}
	return nil
}

func (f *flags) checkCombinations() error {
	if err := cli.CheckPair(cli.Value{Flag: "agent-cert", Text: f.cert}, cli.Value{Flag: "agent-key", Text: f.key}); err != nil {
		return err
	}
	switch {
	case f.contention && !f.profiling:
		return cli.Usagef("--enable-contention-profiling needs --enable-profiling")
	case f.syncInterval > f.syncCap:
		return cli.Usagef("--sync-interval=%v must not be longer than --sync-interval-cap=%v", f.syncInterval, f.syncCap)
	}
	return nil
}

func (f *flags) checkValues() error {
	if _, err := f.servers(); err != nil {
		return err
	}
	if err := cli.CheckServerName(cli.Value{Flag: "server-name", Text: f.name}); err != nil {
		return err
	}
	if err := f.peers.Check(); err != nil {
		return err
	}
	if err := cli.CheckChoice(cli.Value{Flag: "link", Text: f.link}, string(link.Auto), string(link.Off), string(link.Require)); err != nil {
		return err
	}
	if err := cli.CheckChoice(cli.Value{Flag: "server-count-source", Text: f.countSource}, "", string(agent.CountDefault), string(agent.CountMax)); err != nil {
		return err
	}
	for _, proto := range f.alpn {
		if proto == "" || len(proto) > 255 { // RFC 7301 §3.1
			return cli.Usagef("--alpn-proto=%q: a protocol id has 1 to 255 bytes", proto)
		}
	}
	if err := agent.ValidateIdentifiers(f.identifiers); err != nil {
		return cli.Usagef("--agent-identifiers: %w", err)
	}
	if err := cli.CheckID(cli.Value{Flag: "agent-id", Text: f.agentID()}, agent.MaxIdentity); err != nil {
		return err
	}
	if _, err := labels.Parse(f.leaseSelector); err != nil {
		return cli.Usagef("--lease-label-selector=%s: %w", f.leaseSelector, err)
	}
	if err := cli.CheckGiven(f.set, "allow-destination", "deny-destination", "peer-trust-domain"); err != nil {
		return err
	}
	if _, err := policy.Parse(f.allow, nil); err != nil {
		return cli.Usagef("--allow-destination: %w", err)
	}
	if _, err := policy.Parse(nil, f.deny); err != nil {
		return cli.Usagef("--deny-destination: %w", err)
	}
	return nil
}

func (f *flags) checkFiles() error {
	return cli.CheckFiles(cli.Value{Flag: "agent-cert", Text: f.cert}, cli.Value{Flag: "agent-key", Text: f.key}, cli.Value{Flag: "ca-cert", Text: f.ca},
		cli.Value{Flag: "service-account-token-path", Text: f.tokenPath}, cli.Value{Flag: "kubeconfig", Text: f.kubeconfig})
}

// ports are what the agent listens on.
func (f *flags) ports() (health, admin cli.Port) {
	return cli.Port{Flag: "health-server-port", Host: f.healthHost, Number: f.healthPort, Least: 1},
		cli.Port{Flag: "admin-server-port", Host: f.adminHost, Number: f.adminPort}
}

// servers are the host:port pairs to connect to.
func (f *flags) servers() ([]string, error) {
	var all []string
	for _, host := range f.hosts {
		address := host
		bare := strings.Trim(host, "[]")
		_, _, err := net.SplitHostPort(host)
		if _, isAddr := netip.ParseAddr(bare); isAddr == nil || err != nil {
			address = net.JoinHostPort(bare, strconv.Itoa(f.port))
		}
		if _, _, err := tunnel.SplitAddress(address); err != nil {
			return nil, cli.Usagef("--proxy-server-host=%q: want a host name or address, or HOST:PORT", host)
		}
		all = append(all, address)
	}
	if len(all) == 0 {
		return nil, cli.Usagef("--proxy-server-host: want at least one host")
	}
	return all, nil
}

// agentID is the id given by flag, else by the environment, else "".
func (f *flags) agentID() string {
	if f.id != "" {
		return f.id
	}
	return os.Getenv("PROXY_AGENT_ID")
}

// agentIDOrNew is agentID, or a new one.
func (f *flags) agentIDOrNew() string {
	if id := f.agentID(); id != "" {
		return id
	}
	return uuid.NewString()
}
