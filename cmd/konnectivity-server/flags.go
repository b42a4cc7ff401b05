package main

import (
	"math"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"konnectivity/internal/cli"
	"konnectivity/internal/logging"
	"konnectivity/internal/policy"
	"konnectivity/internal/source"
	"konnectivity/internal/tlsreload"
	"konnectivity/server"
	"konnectivity/server/frontend"
	"konnectivity/server/lease"
	"konnectivity/server/registry"
	"konnectivity/server/tenancy"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// The values of --mode and --agent-identifier-policy.
const (
	modeGRPC    = "grpc"
	modeConnect = "http-connect"

	identifiersAny         = "any"
	identifiersCertificate = "certificate"
)

// flags are the command line: upstream's (cmd/server/app/options) and ours.
type flags struct {
	serverCert, serverKey, serverCA    string
	clusterCert, clusterKey, clusterCA string
	ciphers                            []string
	peers                              cli.PeerFlags
	tlsMin                             string

	mode, link            string
	uds                   string
	deleteUDS             bool
	serverPort, agentPort int
	serverBind, agentBind string
	proxies               []string
	maxConns              int
	budgetMiB             int64

	healthPort, adminPort int
	healthBind, adminBind string
	adminToken            string
	adminCert, adminKey   string
	adminCA               string
	profiling, contention bool

	keepalive, frontendKeepalive time.Duration
	grace, dialTimeout           time.Duration
	resumeWindow                 time.Duration

	id         string
	count      int
	strategies string

	agentNamespace, agentAccount, audience string
	allowUnauthenticated                   bool
	identifierPolicy, identifierFile       string

	kubeconfig, apiContentType string
	kubeQPS                    float32
	kubeBurst                  int

	leases                     bool
	leaseNamespace, leaseLabel string

	allow, deny []string

	tenantsDir, tenantsNamespace, tenantsSelector string

	xfrChannelSize     int
	warnOnChannelLimit bool

	logging logging.Flags
	set     *pflag.FlagSet
}

func (f *flags) addTo(cmd *cobra.Command) {
	cli.AddFlags(cmd, "Clients", f.addClients)
	cli.AddFlags(cmd, "Agents", f.addAgents)
	cli.AddFlags(cmd, "Routing", f.addRouting)
	cli.AddFlags(cmd, "Many clusters", f.addTenants)
	cli.AddFlags(cmd, "TLS", f.addTLS)
	cli.AddFlags(cmd, "Bounds", f.addBounds)
	cli.AddFlags(cmd, "Kubernetes API", f.addKube)
	cli.AddFlags(cmd, "Health, metrics and profiling", f.addObservation)
	cli.AddFlags(cmd, "Logging", f.logging.AddTo)
	cli.AddFlags(cmd, "Accepted for compatibility", f.addDeprecated)
	f.set = cmd.Flags()
}

func (f *flags) addClients(set *pflag.FlagSet) {
	set.IntVar(&f.serverPort, "server-port", 8090, "port for clients over mTLS, served only with --server-cert; 0 disables it")
	set.StringVar(&f.serverBind, "server-bind-address", "", "address for the same (default: all)")
	set.StringVar(&f.serverCert, "server-cert", "", "certificate file shown to clients")
	set.StringVar(&f.serverKey, "server-key", "", "private key file of --server-cert")
	set.StringVar(&f.serverCA, "server-ca-cert", "", "CA file for verifying clients' certificates")
	set.StringVar(&f.uds, "uds-name", "", "path of a unix socket for clients, which can be served in addition to --server-port")
	set.BoolVar(&f.deleteUDS, "delete-existing-uds-file", true, "replace a socket file that an earlier process left behind; a socket in use, or a file that is no socket, is never deleted")
	set.StringVar(&f.mode, "mode", "", "protocol for clients, besides native links: grpc or http-connect (default: both)")
	set.StringVar(&f.link, "link", string(link.Auto), "native link: auto (with peers that support it), off, or require (for agents; clients may use what --mode allows)")
	set.DurationVar(&f.frontendKeepalive, "frontend-keepalive-time", server.DefaultKeepalive, "silence after which a gRPC client is pinged; it has 8s to answer")
}

func (f *flags) addAgents(set *pflag.FlagSet) {
	set.IntVar(&f.agentPort, "agent-port", 8091, "port for agents")
	set.StringVar(&f.agentBind, "agent-bind-address", "", "address for the same (default: all)")
	set.StringSliceVar(&f.proxies, "agent-proxy-protocol-from", nil, "addresses or CIDRs of load balancers whose connections to the port must begin with a PROXY protocol header (version 1 or 2), which is believed; headers from elsewhere are refused")
	set.StringVar(&f.clusterCert, "cluster-cert", "", "certificate file shown to agents")
	set.StringVar(&f.clusterKey, "cluster-key", "", "private key file of --cluster-cert")
	set.StringVar(&f.clusterCA, "cluster-ca-cert", "", "CA file for verifying agents' certificates")
	set.StringVar(&f.agentNamespace, "agent-namespace", "", "namespace of the agents' service account, to authenticate them by token instead of certificate")
	set.StringVar(&f.agentAccount, "agent-service-account", "", "name of that service account")
	set.StringVar(&f.audience, "authentication-audience", "", "audience that the agents' tokens must have")
	set.BoolVar(&f.allowUnauthenticated, "allow-unauthenticated-agents", false, "start without --cluster-ca-cert and without token authentication: anybody who reaches the port can become an agent and see traffic")
	set.StringVar(&f.identifierPolicy, "agent-identifier-policy", identifiersAny, "any: agents may claim any identifiers; certificate: only those that their certificate's SANs or --agent-identifier-allow-file cover")
	set.StringVar(&f.identifierFile, "agent-identifier-allow-file", "", "file of grants, one per line: the common name of a certificate or *, and identifiers, e.g. node1 cidr=10.1.0.0/16&default-route=true")
	set.DurationVar(&f.keepalive, "keepalive-time", server.DefaultKeepalive, "silence after which a gRPC agent is pinged; it has 8s to answer")
}

func (f *flags) addRouting(set *pflag.FlagSet) {
	set.StringVar(&f.id, "server-id", "", "unique id of this server (default: $PROXY_SERVER_ID, or a new uuid)")
	set.IntVar(&f.count, "server-count", 1, "number of servers, as announced to agents; where leases are kept, they take precedence")
	set.StringVar(&f.strategies, "proxy-strategies", string(registry.Default), "how an agent is picked: comma-separated strategies, tried in order until one finds an agent; destHost and destCIDR (its identifiers cover the destination), defaultRoute (it has default-route=true), default (any agent)")
	set.StringSliceVar(&f.allow, "allow-destination", nil, "CIDR, address or host glob, with :PORT or :FIRST-LAST where ports matter; repeatable; if any is given, nothing else is served. Cloud metadata addresses are denied unless a rule names them")
	set.StringSliceVar(&f.deny, "deny-destination", nil, "the same, for what is never served; wins over --allow-destination. Names are resolved by agents: give agents the rules for addresses too")
}

func (f *flags) addTenants(set *pflag.FlagSet) {
	set.StringVar(&f.tenantsDir, "tenants-dir", "", "directory with a folder for each further cluster (tenant) that is served on --server-port and --agent-port, by the server names of its tenant.yaml and with its own CAs; followed while the server runs")
	set.StringVar(&f.tenantsNamespace, "tenants-namespace", "", "the same from Secrets of this namespace, each with the files of a tenant; watched while the server runs")
	set.StringVar(&f.tenantsSelector, "tenants-selector", tenancy.SecretLabel, "label selector for these Secrets")
}

// tenants says whether there may be any, and by which flag.
func (f *flags) tenants() (flag string, given bool) {
	if f.tenantsNamespace != "" {
		return "--tenants-namespace", true
	}
	return "--tenants-dir", f.tenantsDir != ""
}

func (f *flags) addTLS(set *pflag.FlagSet) {
	f.peers.AddTo(set, "clients and agents (agents that authenticate by token alone show none)")
	set.StringSliceVar(&f.ciphers, "cipher-suites", nil, "comma-separated cipher suites for TLS 1.2 (default: Go's choice); no effect on TLS 1.3")
	set.StringVar(&f.tlsMin, "tls-min-version", "", "VersionTLS12 or VersionTLS13; lower ones are accepted and mean VersionTLS12 (default: VersionTLS12)")
}

func (f *flags) addBounds(set *pflag.FlagSet) {
	set.DurationVar(&f.dialTimeout, "backend-dial-timeout", tunnel.DefaultDialTimeout, "how long a dial through an agent may take; 0 means no limit")
	set.DurationVar(&f.grace, "graceful-shutdown-timeout", server.DefaultGrace, "how long open connections may go on after the first SIGTERM; 0 cuts them at once")
	set.DurationVar(&f.resumeWindow, "resume-window", resume.DefaultWindow, "how long a connection that has lost its link waits to be resumed over another, to any server; at most 10m; 0: it ends with its link")
	set.IntVar(&f.maxConns, "max-connections", frontend.MaxConns, "maximum number of connections on each port at once; peers that have yet to authenticate do not count")
	set.Int64Var(&f.budgetMiB, "memory-budget-mib", 0, "memory for bytes in flight over links, in MiB (default: a quarter of the memory limit, at most 256)")
}

func (f *flags) addKube(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file for token reviews, leases and tenants' Secrets (default: the pod's service account)")
	set.Float32Var(&f.kubeQPS, "kubeconfig-qps", 0, "maximum API calls per second (default: 49 for token reviews, the client library's for leases)")
	set.IntVar(&f.kubeBurst, "kubeconfig-burst", 0, "number of API calls allowed above that rate in a burst (default: 1 for token reviews, the client library's for leases)")
	set.StringVar(&f.apiContentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", "content type of requests")
	set.BoolVar(&f.leases, "enable-lease-controller", false, "keep a lease, delete those of servers that are gone, and count servers by leases")
	set.StringVar(&f.leaseNamespace, "lease-namespace", "kube-system", "namespace of the leases")
	set.StringVar(&f.leaseLabel, "lease-label", "k8s-app=konnectivity-server", "labels of the leases")
}

func (f *flags) addObservation(set *pflag.FlagSet) {
	set.IntVar(&f.healthPort, "health-port", 8092, "port for /healthz, /readyz, /ready and /metrics; 0: none")
	set.StringVar(&f.healthBind, "health-bind-address", "", "address for the same (default: all)")
	set.IntVar(&f.adminPort, "admin-port", 8095, "port for the status page /, its API /api/v1/, /metrics and /debug/pprof; 0: none")
	set.StringVar(&f.adminBind, "admin-bind-address", "127.0.0.1", "address for the same; empty: all")
	set.StringVar(&f.adminToken, "admin-token-file", "", "file with the token, at least 32 characters, that the admin port requires; a tenant's reader-token is accepted too, and shows that tenant alone; reread when it changes (default: whoever reaches the port sees all)")
	set.StringVar(&f.adminCert, "admin-cert", "", "certificate file of the admin port, which then speaks TLS; whoever has a certificate of a tenant's clients sees that tenant alone (default: plain HTTP)")
	set.StringVar(&f.adminKey, "admin-key", "", "private key file of --admin-cert")
	set.StringVar(&f.adminCA, "admin-ca-cert", "", "CA file: the admin port requires a certificate for clients that chains to it, or a token (default: whoever reaches the port sees all)")
	set.BoolVar(&f.profiling, "enable-profiling", false, "serve /debug/pprof on the admin port")
	set.BoolVar(&f.contention, "enable-contention-profiling", false, "profile lock contention too; needs --enable-profiling")
}

func (f *flags) addDeprecated(set *pflag.FlagSet) {
	set.IntVar(&f.xfrChannelSize, "xfr-channel-size", 10, "no effect: connections are limited in bytes")
	set.BoolVar(&f.warnOnChannelLimit, "warn-on-channel-limit", true, "no effect: there is no such channel")
}

// notes are sentences about flags that were given and do not do what their name
// says.
func (f *flags) notes() []string {
	var notes []string
	if f.set.Changed("xfr-channel-size") {
		notes = append(notes, "--xfr-channel-size has no effect: what a connection may hold is bounded in bytes")
	}
	if f.set.Changed("warn-on-channel-limit") {
		notes = append(notes, "--warn-on-channel-limit is deprecated and has no effect")
	}
	if f.tlsMin == "VersionTLS10" || f.tlsMin == "VersionTLS11" {
		notes = append(notes, "--tls-min-version="+f.tlsMin+" is insecure (RFC 8996); TLS 1.2 is the least that is spoken")
	}
	if proxies, _ := source.ParseNetworks(f.proxies); proxies.HasAll() {
		notes = append(notes, "--agent-proxy-protocol-from trusts everybody: whoever reaches the agent port can pretend to have any address")
	}
	if f.allowUnauthenticated && !f.agentsAuthenticate() {
		notes = append(notes, "--allow-unauthenticated-agents: whoever reaches the agent port can become an agent and see the traffic")
	}
	return notes
}

func (f *flags) tokenAuth() bool {
	return f.agentNamespace != "" || f.agentAccount != "" || f.audience != ""
}

func (f *flags) agentsAuthenticate() bool { return f.clusterCA != "" || f.tokenAuth() }

// clientTCP says whether clients are served over TCP.
func (f *flags) clientTCP() bool { return f.serverPort > 0 && f.serverCert != "" }

// validate returns a *cli.UsageError about the first flag that cannot be meant.
// It touches files only to see that they are there, which is no usage error.
func (f *flags) validate() error {
	for _, check := range []func() error{f.checkNumbers, f.checkValues, f.checkClients, f.checkAgents, f.checkCombinations, f.checkFiles} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (f *flags) checkNumbers() error {
	if err := cli.CheckPorts(f.agentsPort(), f.probePort(), f.statusPort(), f.clientPort()); err != nil {
		return err
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"graceful-shutdown-timeout", f.grace}, {"backend-dial-timeout", f.dialTimeout}} {
		if d.value < 0 {
			return cli.Usagef("--%s=%v: must not be negative", d.flag, d.value)
		}
	}
	if err := resume.CheckWindow(f.resumeWindow); err != nil {
		return cli.Usagef("--resume-window=%v: %v", f.resumeWindow, err)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"keepalive-time", f.keepalive}, {"frontend-keepalive-time", f.frontendKeepalive}} {
		if d.value < time.Second {
			return cli.Usagef("--%s=%v: must be at least 1s", d.flag, d.value)
		}
	}
	for _, n := range []struct {
		flag  string
		value float64
		least float64
	}{
		{"server-count", float64(f.count), 1}, {"xfr-channel-size", float64(f.xfrChannelSize), 1}, {"max-connections", float64(f.maxConns), 1},
		{"kubeconfig-qps", float64(f.kubeQPS), 0}, {"kubeconfig-burst", float64(f.kubeBurst), 0},
	} {
		if n.value < n.least {
			return cli.Usagef("--%s=%v: must be at least %v", n.flag, n.value, n.least)
		}
	}
	if qps := float64(f.kubeQPS); math.IsNaN(qps) || math.IsInf(qps, 0) {
		return cli.Usagef("--kubeconfig-qps=%v: must be a number of calls, or 0 for the default", qps)
	}
	if err := link.CheckBudgetMiB(f.budgetMiB); err != nil {
		return cli.Usagef("--memory-budget-mib=%d: %v", f.budgetMiB, err)
	}
	return nil
}

func (f *flags) checkValues() error {
	for _, choice := range []struct {
		cli.Value
		accepted []string
	}{
		{cli.Value{Flag: "mode", Text: f.mode}, []string{"", modeGRPC, modeConnect}},
		{cli.Value{Flag: "link", Text: f.link}, []string{string(link.Auto), string(link.Off), string(link.Require)}},
		{cli.Value{Flag: "agent-identifier-policy", Text: f.identifierPolicy}, []string{identifiersAny, identifiersCertificate}},
	} {
		if err := cli.CheckChoice(choice.Value, choice.accepted...); err != nil {
			return err
		}
	}
	if err := f.peers.Check(); err != nil {
		return err
	}
	if _, err := registry.ParseStrategies(f.strategies); err != nil {
		return cli.Usagef("--proxy-strategies: %w", err)
	}
	if _, err := tlsreload.ParseVersion(f.tlsMin); err != nil {
		return cli.Usagef("--tls-min-version: %w", err)
	}
	if _, err := tlsreload.ParseCipherSuites(f.ciphers); err != nil {
		return cli.Usagef("--cipher-suites: %w", err)
	}
	if err := cli.CheckGiven(f.set, "agent-proxy-protocol-from", "allow-destination", "deny-destination", "peer-trust-domain",
		"agent-identifier-allow-file", "admin-token-file", "admin-ca-cert"); err != nil {
		return err
	}
	if _, err := source.ParseNetworks(f.proxies); err != nil {
		return cli.Usagef("--agent-proxy-protocol-from: %w", err)
	}
	if _, err := policy.Parse(f.allow, nil); err != nil {
		return cli.Usagef("--allow-destination: %w", err)
	}
	if _, err := policy.Parse(nil, f.deny); err != nil {
		return cli.Usagef("--deny-destination: %w", err)
	}
	return f.checkID()
}

// checkID sees that the id fits into gRPC metadata, and into a lease's name
// where there is one.
func (f *flags) checkID() error {
	id := f.givenID()
	if err := cli.CheckID(cli.Value{Flag: "server-id", Text: id}, registry.MaxID); err != nil {
		return err
	}
	if !f.leases {
		return nil
	}
	if _, err := labels.ConvertSelectorToLabelsMap(f.leaseLabel); err != nil || f.leaseLabel == "" {
		return cli.Usagef("--lease-label=%q: want KEY=VALUE, or several of them with commas between", f.leaseLabel)
	}
	if id != "" && len(validation.IsDNS1123Subdomain(lease.NamePrefix+id)) > 0 {
		return cli.Usagef("--server-id=%q: with --enable-lease-controller it is part of a lease's name: lower-case letters, digits, '-' and '.' are accepted", id)
	}
	return nil
}

func (f *flags) checkClients() error {
	if err := cli.CheckPair(cli.Value{Flag: "server-cert", Text: f.serverCert}, cli.Value{Flag: "server-key", Text: f.serverKey}); err != nil {
		return err
	}
	switch {
	case f.clientTCP() && f.serverCA == "":
		return cli.Usagef("--server-ca-cert is missing: without it anybody who reaches --server-port could use the tunnel")
	case f.serverCert == "" && f.serverCA != "":
		return cli.Usagef("--server-ca-cert needs --server-cert and --server-key")
	case f.serverCert != "" && f.serverPort == 0:
		return cli.Usagef("--server-cert is given and --server-port is 0: a unix socket has no TLS")
	case f.uds != "" && f.set.Changed("server-port") && f.serverPort > 0 && f.serverCert == "":
		return cli.Usagef("--server-port=%d needs --server-cert, --server-key and --server-ca-cert; set it to 0 for --uds-name alone", f.serverPort)
	case f.uds == "" && !f.clientTCP():
		return cli.Usagef("no port for clients: give --server-cert, --server-key and --server-ca-cert, or --uds-name")
	}
	return nil
}

func (f *flags) checkAgents() error {
	if err := cli.CheckPair(cli.Value{Flag: "cluster-cert", Text: f.clusterCert}, cli.Value{Flag: "cluster-key", Text: f.clusterKey}); err != nil {
		return err
	}
	if f.clusterCert == "" {
		return cli.Usagef("--cluster-cert and --cluster-key are missing: agents connect over TLS only")
	}
	if f.tokenAuth() {
		if f.clusterCA != "" {
			return cli.Usagef("--cluster-ca-cert and authentication by token (--agent-namespace, --agent-service-account, --authentication-audience) exclude each other")
		}
		for _, part := range []struct{ flag, value string }{
			{"agent-namespace", f.agentNamespace}, {"agent-service-account", f.agentAccount}, {"authentication-audience", f.audience},
		} {
			if part.value == "" {
				return cli.Usagef("--%s is missing: authentication by token needs --agent-namespace, --agent-service-account and --authentication-audience", part.flag)
			}
		}
	}
	if !f.agentsAuthenticate() && !f.allowUnauthenticated {
		return cli.Usagef("agents could connect without authentication: give --cluster-ca-cert, or --agent-namespace, --agent-service-account and --authentication-audience; or say --allow-unauthenticated-agents")
	}
	if f.identifierFile != "" && f.identifierPolicy != identifiersCertificate {
		return cli.Usagef("--agent-identifier-allow-file needs --agent-identifier-policy=certificate")
	}
	return nil
}

func (f *flags) checkCombinations() error {
	if err := f.checkTenants(); err != nil {
		return err
	}
	if err := f.checkAdmin(); err != nil {
		return err
	}
	if f.contention && !f.profiling {
		return cli.Usagef("--enable-contention-profiling needs --enable-profiling")
	}
	return nil
}

func (f *flags) checkAdmin() error {
	if err := cli.CheckPair(cli.Value{Flag: "admin-cert", Text: f.adminCert}, cli.Value{Flag: "admin-key", Text: f.adminKey}); err != nil {
		return err
	}
	switch {
	case f.adminToken != "" && f.adminPort == 0:
		return cli.Usagef("--admin-token-file needs --admin-port")
	case f.adminCert != "" && f.adminPort == 0:
		return cli.Usagef("--admin-cert needs --admin-port")
	case f.adminCA != "" && f.adminCert == "":
		return cli.Usagef("--admin-ca-cert needs --admin-cert and --admin-key: certificates are shown over TLS")
	}
	return nil
}

func (f *flags) checkTenants() error {
	flag, given := f.tenants()
	switch {
	case f.tenantsDir != "" && f.tenantsNamespace != "":
		return cli.Usagef("--tenants-dir and --tenants-namespace exclude each other: tenants are folders or Secrets")
	case given && !f.clientTCP():
		return cli.Usagef("%s needs --server-port with --server-cert, --server-key and --server-ca-cert: tenants' clients are told apart in the TLS handshake", flag)
	case f.tenantsNamespace == "" && f.set.Changed("tenants-selector"):
		return cli.Usagef("--tenants-selector needs --tenants-namespace")
	}
	if msgs := validation.IsDNS1123Label(f.tenantsNamespace); f.tenantsNamespace != "" && len(msgs) > 0 {
		return cli.Usagef("--tenants-namespace=%q is not the name of a namespace", f.tenantsNamespace)
	}
	if selector, err := labels.Parse(f.tenantsSelector); err != nil {
		return cli.Usagef("--tenants-selector: %w", err)
	} else if selector.Empty() {
		return cli.Usagef("--tenants-selector is empty: it would select every Secret of the namespace")
	}
	return nil
}

func (f *flags) clientPort() cli.Port {
	return cli.Port{Flag: "server-port", Host: f.serverBind, Number: f.serverPort, Unused: !f.clientTCP()}
}

func (f *flags) agentsPort() cli.Port {
	return cli.Port{Flag: "agent-port", Host: f.agentBind, Number: f.agentPort, Least: 1}
}

func (f *flags) probePort() cli.Port {
	return cli.Port{Flag: "health-port", Host: f.healthBind, Number: f.healthPort}
}

func (f *flags) statusPort() cli.Port {
	return cli.Port{Flag: "admin-port", Host: f.adminBind, Number: f.adminPort}
}

func (f *flags) checkFiles() error {
	return cli.CheckFiles(
		cli.Value{Flag: "server-cert", Text: f.serverCert}, cli.Value{Flag: "server-key", Text: f.serverKey}, cli.Value{Flag: "server-ca-cert", Text: f.serverCA},
		cli.Value{Flag: "cluster-cert", Text: f.clusterCert}, cli.Value{Flag: "cluster-key", Text: f.clusterKey}, cli.Value{Flag: "cluster-ca-cert", Text: f.clusterCA},
		cli.Value{Flag: "kubeconfig", Text: f.kubeconfig}, cli.Value{Flag: "admin-token-file", Text: f.adminToken},
		cli.Value{Flag: "admin-cert", Text: f.adminCert}, cli.Value{Flag: "admin-key", Text: f.adminKey}, cli.Value{Flag: "admin-ca-cert", Text: f.adminCA},
		cli.Value{Flag: "agent-identifier-allow-file", Text: f.identifierFile})
}

// givenID is the id given by flag, else by the environment, else "".
func (f *flags) givenID() string {
	if f.id != "" {
		return f.id
	}
	return os.Getenv("PROXY_SERVER_ID")
}

func (f *flags) serverID() string {
	if id := f.givenID(); id != "" {
		return id
	}
	return uuid.NewString()
}
