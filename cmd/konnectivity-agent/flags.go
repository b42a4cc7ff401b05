package main

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/agent"
	"konnectivity/internal/audit"
	"konnectivity/internal/cli"
	"konnectivity/internal/policy"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/traces"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// flags are the command line. Flags that are options of the agent set those.
type flags struct {
	options agent.Options

	files     tlsreload.Files
	peers     cli.PeerFlags
	hosts     []string
	port      int
	tokenPath string
	budgetMiB int64
	handover  string // path of the socket

	countLeases                   bool
	leaseNamespace, leaseSelector string
	kubeconfig                    string

	allow, deny []string
	api         []string // places
	apiServers  []string
	policyFile  string
	egressProxy bool

	health, admin         cli.Port
	profiling, contention bool

	// Flags of upstream without effect here.
	probeInterval  time.Duration
	xfrChannelSize int

	auditLog string
	traces   traces.Flags
	logging  cli.LogFlags
	set      *pflag.FlagSet
}

// The servers' usual ports for agents and for clients.
const agentPort, clientPort = 8091, 8090

// leastSync bounds the work of an agent that reaches no server.
const leastSync = 10 * time.Millisecond

func (f *flags) addTo(cmd *cobra.Command) {
	cli.AddFlags(cmd, "Servers", f.addServers)
	cli.AddFlags(cmd, "Identity", f.addIdentity)
	cli.AddFlags(cmd, "Number of servers", f.addCounting)
	cli.AddFlags(cmd, "Destinations", f.addDestinations)
	cli.AddFlags(cmd, "API server", f.addAPI)
	cli.AddFlags(cmd, "Health, metrics and profiling", f.addObservation)
	cli.AddFlags(cmd, "Logging", f.logging.AddTo)
	cli.AddFlags(cmd, "Logging", func(set *pflag.FlagSet) { audit.AddFlag(set, &f.auditLog) })
	cli.AddFlags(cmd, "Traces", f.traces.AddTo)
	cli.AddFlags(cmd, "Accepted for compatibility", f.addDeprecated)
	f.set = cmd.Flags()
}

func (f *flags) addServers(set *pflag.FlagSet) {
	set.StringSliceVar(&f.hosts, "proxy-server-host", []string{"127.0.0.1"}, "name or address of one or more servers; every address that a name resolves to is dialed; HOST:PORT overrides --proxy-server-port")
	set.IntVar(&f.port, "proxy-server-port", agentPort, fmt.Sprintf("port of the servers; with --api-server, the default is %d", clientPort))
	set.StringVar(&f.options.ServerName, "server-name", "", "name to ask the servers for in TLS (SNI), which their certificates must have (default: the host of --proxy-server-host)")
	set.StringVar(&f.files.CA, "ca-cert", "", "CA file for verifying the servers' certificates (default: the system's CAs)")
	f.peers.AddTo(set, "servers")
	set.StringSliceVar(&f.options.ALPN, "alpn-proto", nil, "additional ALPN protocols to offer, for load balancers that route by them")
	cli.Choice(set, &f.options.Link, "link", link.Auto, "native link: auto (if the server supports it), off (gRPC only) or require", link.Auto, link.Off, link.Require)
	set.DurationVar(&f.options.SyncInterval, "sync-interval", agent.DefaultSyncInterval, "pause before the first retry when a server cannot be reached")
	set.DurationVar(&f.options.SyncIntervalCap, "sync-interval-cap", agent.DefaultSyncIntervalCap, "longest pause between retries")
	set.IntVar(&f.options.MaxServers, "max-servers", 0, "to how many servers to be connected where there are more, each agent to a choice of its own; only where servers forward to one another (--peer-servers), since others do not reach it; 0: to all")
	set.BoolVar(&f.options.SyncForever, "sync-forever", false, "look for more servers every --sync-interval-cap; without it the agent looks less often, which is usually enough")
	set.DurationVar(&f.options.Keepalive, "keepalive-time", 0, "silence after which a server is pinged; it has 10s to answer; less than 1s means 1s (default: pinged after 5s, given up after 15s or less)")
	set.DurationVar(&f.options.Grace, "graceful-shutdown-timeout", agent.DefaultGrace, "how long open connections may go on after the first SIGTERM; 0 cuts them at once")
	set.DurationVar(&f.options.ResumeWindow, "resume-window", resume.DefaultWindow, "how long a connection that has lost its link waits to be resumed over another, to any server; at most 10m; 0: it ends with its link")
	set.IntVar(&f.options.Lanes, "link-lanes", lanes.MaxLanes, fmt.Sprintf("how many TCP connections a link to a server may have where one is not enough: on a far line, or for more bulk than one core decrypts; at most %d; 1: only one", lanes.MaxLanes))
	set.Int64Var(&f.budgetMiB, "memory-budget-mib", 0, "memory for bytes in flight over links, in MiB (default: a quarter of the memory limit, at most 256)")
}

func (f *flags) addIdentity(set *pflag.FlagSet) {
	set.StringVar(&f.files.Cert, "agent-cert", "", "certificate file to authenticate with")
	set.StringVar(&f.files.Key, "agent-key", "", "private key file of --agent-cert")
	set.StringVar(&f.tokenPath, "service-account-token-path", "", "file with a token to authenticate with; reread for every connection")
	set.StringVar(&f.options.ID, "agent-id", "", "unique id of this agent (default: $PROXY_AGENT_ID, or a uuid that stays on Linux when the process is restarted)")
	set.StringVar(&f.handover, "handover-socket", "", "unix socket by which the next agent on this node, started beside this one with the same path, id and servers, takes over its connections; Linux only (default: they end with this agent)")
	set.StringVar(&f.options.Identifiers, "agent-identifiers", "", "destinations for which servers pick this agent, URL-encoded, e.g. host=node1&ipv4=192.0.2.1&cidr=192.0.2.0/24&default-route=true")
}

func (f *flags) addCounting(set *pflag.FlagSet) {
	cli.Choice(set, &f.options.CountSource, "server-count-source", agent.CountDefault,
		"default (leases where --count-server-leases is set, else what servers say) or max (the larger of both)", "", agent.CountDefault, agent.CountMax)
	set.BoolVar(&f.countLeases, "count-server-leases", false, "count servers by their leases in the Kubernetes API")
	set.StringVar(&f.leaseNamespace, "lease-namespace", "kube-system", "namespace of the leases")
	set.StringVar(&f.leaseSelector, "lease-label-selector", "k8s-app=konnectivity-server", "label selector of the leases")
	set.StringVar(&f.leaseSelector, "lease-label", "k8s-app=konnectivity-server", "older name of --lease-label-selector; the later of the two on the command line counts")
	_ = set.MarkHidden("lease-label") // fails only for a name that is not defined
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file for the leases (default: the pod's service account)")
	set.String("kube-api-content-type", "application/vnd.kubernetes.protobuf", "accepted for compatibility, without effect: requests to the Kubernetes API are JSON")
}

func (f *flags) addDestinations(set *pflag.FlagSet) {
	set.StringSliceVar(&f.allow, "allow-destination", nil, "CIDR, address or host glob, with :PORT or :FIRST-LAST where ports matter; repeatable; if any is given, nothing else may be dialed. Cloud metadata addresses are denied unless a rule names them")
	set.StringSliceVar(&f.deny, "deny-destination", nil, "the same, for what may never be dialed; wins over --allow-destination; names are checked by their resolved addresses")
	set.StringVar(&f.policyFile, "policy-file", "", "file that says which client may reach what, in addition to the two flags above; it is followed (docs/policy.md)")
	set.DurationVar(&f.options.DialTimeout, "dial-timeout", tunnel.DefaultDialTimeout, "how long a dial to a destination may take, name resolution included")
	set.BoolVar(&f.egressProxy, "egress-proxy-from-environment", false, "dial destinations through the proxy in HTTPS_PROXY unless NO_PROXY matches")
}

func (f *flags) addAPI(set *pflag.FlagSet) {
	set.StringSliceVar(&f.api, "api-bind", nil, "HOST:PORT or unix:PATH where kubelet and other programs of this node reach their API server through a server that has --api-server; TLS is theirs from end to end; repeatable (default: nowhere)")
	set.StringSliceVar(&f.apiServers, "api-server", nil, "HOST:PORT of the kube-apiserver that this agent runs beside, for nodes of servers with --api-server=agent to reach; it dials nothing else, and connects to the servers' ports for clients, with a client's certificate; repeatable, at most 4 (default: it is a node's agent)")
}

func (f *flags) addObservation(set *pflag.FlagSet) {
	f.health, f.admin = cli.Port{Flag: "health-server-port", Least: 1}, cli.Port{Flag: "admin-server-port"}
	set.StringVar(&f.health.Host, "health-server-host", "", "address for /healthz, /readyz and /metrics (default: all)")
	set.IntVar(&f.health.Number, "health-server-port", 8093, "port for the same")
	set.StringVar(&f.admin.Host, "admin-bind-address", "127.0.0.1", "address for the status page /, its API /api/v1/ and /debug/pprof; empty: all")
	set.IntVar(&f.admin.Number, "admin-server-port", 8094, "port for the same; 0: off")
	set.BoolVar(&f.profiling, "enable-profiling", false, "serve /debug/pprof on the admin port")
	set.BoolVar(&f.contention, "enable-contention-profiling", false, "profile lock contention too; needs --enable-profiling")
}

func (f *flags) addDeprecated(set *pflag.FlagSet) {
	set.DurationVar(&f.probeInterval, "probe-interval", time.Second, "no effect: a broken connection is noticed at once, a silent one after --keepalive-time")
	set.IntVar(&f.xfrChannelSize, "xfr-channel-size", 150, "no effect: connections are limited in bytes")
	set.Bool("warn-on-channel-limit", false, "no effect: there is no such channel")
}

// notes are warnings about flags that were given without effect, or by an old name.
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

// validate checks the flags, and sets the options that take more than one flag. Its
// error is a *cli.UsageError, except where a file does not exist.
func (f *flags) validate() error {
	return cmp.Or(f.checkNumbers(), f.checkValues(),
		cli.CheckFiles(f.set, "agent-cert", "agent-key", "ca-cert", "service-account-token-path", "kubeconfig", "policy-file"))
}

func (f *flags) checkNumbers() error {
	o := &f.options
	if err := cli.CheckPorts(cli.Port{Flag: "proxy-server-port", Number: f.port, Least: 1, Unused: true}, f.health, f.admin); err != nil {
		return err
	}
	for name, d := range map[string]time.Duration{
		"sync-interval": o.SyncInterval, "sync-interval-cap": o.SyncIntervalCap, "probe-interval": f.probeInterval, "dial-timeout": o.DialTimeout,
	} {
		if d <= 0 {
			return cli.Usagef("--%s=%v: must be longer than 0", name, d)
		}
	}
	if f.xfrChannelSize <= 0 {
		return cli.Usagef("--xfr-channel-size=%d: must be greater than 0", f.xfrChannelSize)
	}
	return cmp.Or(
		cli.NotNegative("keepalive-time", o.Keepalive),
		cli.NotNegative("graceful-shutdown-timeout", o.Grace),
		cli.AtLeast("sync-interval", o.SyncInterval, leastSync),
		cli.CheckValue("resume-window", o.ResumeWindow, resume.CheckWindow(o.ResumeWindow)),
		cli.CheckValue("link-lanes", o.Lanes, lanes.CheckMax(o.Lanes)),
		cli.CheckValue("max-servers", o.MaxServers, agent.CheckMaxServers(o.MaxServers)),
		cli.CheckValue("memory-budget-mib", f.budgetMiB, link.CheckBudgetMiB(f.budgetMiB)),
	)
}

func (f *flags) checkValues() (err error) {
	o := &f.options
	switch {
	case f.contention && !f.profiling:
		return cli.Usagef("--enable-contention-profiling needs --enable-profiling")
	case o.SyncInterval > o.SyncIntervalCap:
		return cli.Usagef("--sync-interval=%v must not be longer than --sync-interval-cap=%v", o.SyncInterval, o.SyncIntervalCap)
	}
	if o.Servers, err = f.servers(); err != nil {
		return err
	}
	for _, proto := range o.ALPN {
		if proto == "" || len(proto) > 255 { // RFC 7301 §3.1
			return cli.Usagef("--alpn-proto=%q: a protocol id has 1 to 255 bytes", proto)
		}
	}
	_, selector := labels.Parse(f.leaseSelector)
	_, allow := policy.Parse(f.allow, nil)
	_, deny := policy.Parse(nil, f.deny)
	return cmp.Or(
		cli.CheckPair(f.set, "agent-cert", "agent-key"),
		cli.CheckServerName(o.ServerName),
		f.peers.Check(),
		cli.FlagError("agent-identifiers", agent.ValidateIdentifiers(o.Identifiers)),
		cli.CheckID("agent-id", f.agentID(), link.MaxID),
		cli.CheckValue("lease-label-selector", f.leaseSelector, selector),
		cli.CheckGiven(f.set, "allow-destination", "deny-destination", "policy-file", "peer-trust-domain", "audit-log"),
		cli.FlagError("allow-destination", allow),
		cli.FlagError("deny-destination", deny),
		f.checkAPI(),
	)
}

// servers are the host:port pairs to connect to.
func (f *flags) servers() ([]string, error) {
	if len(f.apiServers) > 0 && !f.set.Changed("proxy-server-port") {
		f.port = clientPort
	}
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

// agentID is the id of the flag, or else of the environment; "" if neither gives one.
func (f *flags) agentID() string { return cmp.Or(f.options.ID, os.Getenv("PROXY_AGENT_ID")) }
