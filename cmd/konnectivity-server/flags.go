package main

import (
	"cmp"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"konnectivity/internal/admission"
	"konnectivity/internal/audit"
	"konnectivity/internal/cli"
	"konnectivity/internal/policy"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/traces"
	"konnectivity/server"
	"konnectivity/server/auth"
	"konnectivity/server/frontend"
	"konnectivity/server/lease"
	"konnectivity/server/registry"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// The values of --mode.
const (
	modeGRPC    = "grpc"
	modeConnect = "http-connect"
)

// flags are the command line. Flags that are options of the server set those.
type flags struct {
	options server.Options

	server, cluster, admin, peer tlsreload.Files
	tls                          tlsreload.Options // of every port
	ciphers                      []string
	tlsMin                       string
	peers                        cli.PeerFlags

	mode      string
	link      link.Mode
	uds       string
	deleteUDS bool
	proxies   []string
	networks  admission.Networks // proxies, parsed
	budgetMiB int64

	clientPort, agentPort, healthPort, adminPort, peerPort cli.Port

	adminToken string
	strategies string

	tokens                           auth.TokensConfig // its rate is that of leases too
	agentAccount                     auth.Account
	clientTokens                     auth.TokensConfig
	clientAccounts                   []string
	clientKubeconfig                 string
	clientReview                     bool
	allowUnauthenticated             bool
	identifierPolicy, identifierFile string
	idPolicy                         string

	kubeconfig string

	leases                     bool
	leaseNamespace, leaseLabel string

	allow, deny []string
	policyFile  string

	peering    server.Peering
	advertise  string
	advertised netip.Addr // advertise, parsed

	tenantsDir, tenantsNamespace, tenantsSelector string

	// Flags of upstream without effect here.
	xfrChannelSize int

	auditLog string
	traces   traces.Flags
	logging  cli.LogFlags
	set      *pflag.FlagSet
}

func (f *flags) addTo(cmd *cobra.Command) {
	f.clientPort.Flag, f.agentPort.Flag, f.agentPort.Least = "server-port", "agent-port", 1
	f.healthPort.Flag, f.adminPort.Flag, f.peerPort.Flag, f.peerPort.Least = "health-port", "admin-port", "peer-port", 1
	cli.AddFlags(cmd, "Clients", f.addClients)
	cli.AddFlags(cmd, "Agents", f.addAgents)
	cli.AddFlags(cmd, "Routing", f.addRouting)
	cli.AddFlags(cmd, "Other servers", f.addPeers)
	cli.AddFlags(cmd, "Nodes' way to the API server", f.addAPI)
	cli.AddFlags(cmd, "Many clusters", f.addTenants)
	cli.AddFlags(cmd, "TLS", f.addTLS)
	cli.AddFlags(cmd, "Bounds", f.addBounds)
	cli.AddFlags(cmd, "Kubernetes API", f.addKube)
	cli.AddFlags(cmd, "Health, metrics and profiling", f.addObservation)
	cli.AddFlags(cmd, "Logging", f.logging.AddTo)
	cli.AddFlags(cmd, "Logging", func(set *pflag.FlagSet) { audit.AddFlag(set, &f.auditLog) })
	cli.AddFlags(cmd, "Traces", f.traces.AddTo)
	cli.AddFlags(cmd, "Accepted for compatibility", f.addDeprecated)
	f.set = cmd.Flags()
}

func (f *flags) addClients(set *pflag.FlagSet) {
	set.IntVar(&f.clientPort.Number, "server-port", 8090, "port for clients over mTLS, served only with --server-cert; 0 disables it")
	set.StringVar(&f.clientPort.Host, "server-bind-address", "", "address for the same (default: all)")
	set.StringVar(&f.server.Cert, "server-cert", "", "certificate file shown to clients")
	set.StringVar(&f.server.Key, "server-key", "", "private key file of --server-cert")
	set.StringVar(&f.server.CA, "server-ca-cert", "", "CA file for verifying clients' certificates")
	set.StringVar(&f.server.CRL, "server-ca-crl", "", "file with revocation lists, PEM or DER, of CAs in --server-ca-cert: clients whose certificates they name are refused, and disconnected; reread when it changes")
	set.StringSliceVar(&f.clientAccounts, "client-service-accounts", nil, "NAMESPACE/NAME of service accounts whose tokens clients may show, by links and CONNECT, instead of a certificate; repeatable")
	set.StringVar(&f.clientTokens.Audience, "client-authentication-audience", "", "audience that the tokens of --client-service-accounts must have")
	set.StringVar(&f.clientKubeconfig, "client-kubeconfig", "", "kubeconfig file of the Kubernetes API that reviews the tokens of --client-service-accounts, and access by --client-access-review (default: the pod's service account)")
	set.BoolVar(&f.clientReview, "client-access-review", false, "have the API of --client-kubeconfig say, by SubjectAccessReview, which new connections each client may make, in addition to the rules of this server (docs/policy.md)")
	set.StringVar(&f.uds, "uds-name", "", "path of a unix socket for clients, which can be served in addition to --server-port")
	set.BoolVar(&f.deleteUDS, "delete-existing-uds-file", true, "replace a socket file that an earlier process left behind; a socket in use, or a file that is no socket, is never deleted")
	cli.Choice(set, &f.mode, "mode", "", "protocol for clients, besides native links: grpc or http-connect (default: both)", "", modeGRPC, modeConnect)
	cli.Choice(set, &f.link, "link", link.Auto, "native link: auto (with peers that support it), off, or require (for agents; clients may use what --mode allows)", link.Auto, link.Off, link.Require)
	set.DurationVar(&f.options.ClientKeepalive, "frontend-keepalive-time", server.DefaultKeepalive, "silence after which a gRPC client is pinged; it has 8s to answer")
}

func (f *flags) addAgents(set *pflag.FlagSet) {
	set.IntVar(&f.agentPort.Number, "agent-port", 8091, "port for agents")
	set.StringVar(&f.agentPort.Host, "agent-bind-address", "", "address for the same (default: all)")
	set.StringSliceVar(&f.proxies, "agent-proxy-protocol-from", nil, "addresses or CIDRs of load balancers whose connections to the port must begin with a PROXY protocol header (version 1 or 2), which is believed; headers from elsewhere are refused")
	set.StringVar(&f.cluster.Cert, "cluster-cert", "", "certificate file shown to agents")
	set.StringVar(&f.cluster.Key, "cluster-key", "", "private key file of --cluster-cert")
	set.StringVar(&f.cluster.CA, "cluster-ca-cert", "", "CA file for verifying agents' certificates")
	set.StringVar(&f.cluster.CRL, "cluster-ca-crl", "", "file with revocation lists, PEM or DER, of CAs in --cluster-ca-cert: agents whose certificates they name are refused, and disconnected; reread when it changes")
	set.StringVar(&f.agentAccount.Namespace, "agent-namespace", "", "namespace of the agents' service account, to authenticate them by token instead of certificate")
	set.StringVar(&f.agentAccount.Name, "agent-service-account", "", "name of that service account")
	set.StringVar(&f.tokens.Audience, "authentication-audience", "", "audience that the agents' tokens must have")
	set.BoolVar(&f.allowUnauthenticated, "allow-unauthenticated-agents", false, "start without --cluster-ca-cert and without token authentication: anybody who reaches the port can become an agent and see traffic")
	cli.Choice(set, &f.idPolicy, "agent-id-policy", tenant.NamesAny,
		"any: agents may have any id that no other has; certificate: only a name of their certificate (common name, DNS name or URI)", tenant.NamesAny, tenant.NamesOfCertificate)
	cli.Choice(set, &f.identifierPolicy, "agent-identifier-policy", tenant.NamesAny,
		"any: agents may claim any identifiers; certificate: only those that their certificate's SANs or --agent-identifier-allow-file cover", tenant.NamesAny, tenant.NamesOfCertificate)
	set.StringVar(&f.identifierFile, "agent-identifier-allow-file", "", "file of grants, one per line: the common name of a certificate or *, and identifiers, e.g. node1 cidr=10.1.0.0/16&default-route=true")
	set.DurationVar(&f.options.Keepalive, "keepalive-time", server.DefaultKeepalive, "silence after which a gRPC agent is pinged; it has 8s to answer")
}

func (f *flags) addRouting(set *pflag.FlagSet) {
	set.StringVar(&f.options.ID, "server-id", "", "unique id of this server (default: $PROXY_SERVER_ID, or a new uuid)")
	set.IntVar(&f.options.Count, "server-count", 1, "number of servers, as announced to agents; where leases are kept, they take precedence")
	set.StringVar(&f.strategies, "proxy-strategies", string(registry.Default), "how an agent is picked: comma-separated strategies, tried in order until one finds an agent; destHost and destCIDR (its identifiers cover the destination), defaultRoute (it has default-route=true), default (any agent)")
	set.StringSliceVar(&f.allow, "allow-destination", nil, "CIDR, address or host glob, with :PORT or :FIRST-LAST where ports matter; repeatable; if any is given, nothing else is served. Cloud metadata addresses are denied unless a rule names them")
	set.StringSliceVar(&f.deny, "deny-destination", nil, "the same, for what is never served; wins over --allow-destination. Names are resolved by agents: give agents the rules for addresses too")
	set.StringVar(&f.policyFile, "policy-file", "", "file that says which client may reach what, in addition to the two flags above; it is followed (docs/policy.md)")
}

func (f *flags) addPeers(set *pflag.FlagSet) {
	set.StringSliceVar(&f.peering.Addresses, "peer-servers", nil, "HOST:PORT of other servers, which forward to one another; a name may have several addresses, such as that of a headless Service, and the server's own may be among them; repeatable (default: a server reaches its own agents only)")
	set.StringVar(&f.advertise, "peer-advertise-address", "", "address of this server, published with --peer-port in its lease: servers whose leases have one are linked, beside --peer-servers; needs --enable-lease-controller and --peer-server-name")
	set.IntVar(&f.peerPort.Number, "peer-port", 8097, "port for other servers, served only with --peer-servers or --peer-advertise-address")
	set.StringVar(&f.peerPort.Host, "peer-bind-address", "", "address for the same (default: all)")
	set.StringVar(&f.peering.ServerName, "peer-server-name", "", "name that other servers' certificates must have (default: the host of --peer-servers)")
	set.StringVar(&f.peer.Cert, "peer-cert", "", "certificate file shown to other servers, with the role server and for both usages, server and client (default: that of --cluster-cert)")
	set.StringVar(&f.peer.Key, "peer-key", "", "private key file of --peer-cert")
	set.StringVar(&f.peer.CRL, "peer-ca-crl", "", "file with revocation lists for other servers' certificates (default: that of --cluster-ca-crl, where --peer-ca-cert is that of agents, too)")
	set.StringVar(&f.peer.CA, "peer-ca-cert", "", "CA file for verifying other servers' certificates, which must have the role server (default: that of --cluster-ca-cert)")
}

func (f *flags) addAPI(set *pflag.FlagSet) {
	set.StringSliceVar(&f.options.APIServers, "api-server", nil, "HOST:PORT of the cluster's kube-apiserver, which agents with --api-bind let their nodes reach through this server; repeatable, at most 4; or agent: an agent with an --api-server of its own, at the port for clients, dials it, so that connections outlive this server; tenants have their own (default: they reach none)")
}

func (f *flags) addTenants(set *pflag.FlagSet) {
	set.StringVar(&f.tenantsDir, "tenants-dir", "", "directory with a folder for each further cluster (tenant) that is served on --server-port and --agent-port, by the server names of its tenant.yaml and with its own CAs; followed while the server runs")
	set.StringVar(&f.tenantsNamespace, "tenants-namespace", "", "the same from Secrets of this namespace, each with the files of a tenant; watched while the server runs")
	set.StringVar(&f.tenantsSelector, "tenants-selector", tenant.SecretLabel, "label selector for these Secrets")
}

func (f *flags) addTLS(set *pflag.FlagSet) {
	f.peers.AddTo(set, "clients and agents (agents that authenticate by token alone show none)")
	set.StringSliceVar(&f.ciphers, "cipher-suites", nil, "comma-separated cipher suites for TLS 1.2 (default: Go's choice); no effect on TLS 1.3")
	set.StringVar(&f.tlsMin, "tls-min-version", "", "VersionTLS12 or VersionTLS13; lower ones are accepted and mean VersionTLS12 (default: VersionTLS12)")
}

func (f *flags) addBounds(set *pflag.FlagSet) {
	set.DurationVar(&f.options.DialTimeout, "backend-dial-timeout", tunnel.DefaultDialTimeout, "how long a dial through an agent may take; 0 means no limit")
	set.DurationVar(&f.options.Grace, "graceful-shutdown-timeout", server.DefaultGrace, "how long open connections may go on after the first SIGTERM; 0 cuts them at once")
	set.DurationVar(&f.options.ResumeWindow, "resume-window", resume.DefaultWindow, "how long a connection that has lost its link waits to be resumed over another, to any server; at most 10m; 0: it ends with its link")
	set.IntVar(&f.options.MaxConns, "max-connections", frontend.MaxConns, "maximum number of connections on each port at once; peers that have yet to authenticate do not count")
	set.Int64Var(&f.budgetMiB, "memory-budget-mib", 0, "memory for bytes in flight over links, in MiB (default: a quarter of the memory limit, at most 256)")
}

func (f *flags) addKube(set *pflag.FlagSet) {
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file for token reviews, leases and tenants' Secrets (default: the pod's service account)")
	set.Float32Var(&f.tokens.PerSecond, "kubeconfig-qps", 0, "maximum API calls per second (default: 49 for token reviews, the client library's for leases)")
	set.IntVar(&f.tokens.Burst, "kubeconfig-burst", 0, "number of API calls allowed above that rate in a burst (default: 1 for token reviews, the client library's for leases)")
	set.String("kube-api-content-type", "application/vnd.kubernetes.protobuf", "accepted for compatibility, without effect: requests to the Kubernetes API are JSON")
	set.BoolVar(&f.leases, "enable-lease-controller", false, "keep a lease, delete those of servers that are gone, and count servers by leases")
	set.StringVar(&f.leaseNamespace, "lease-namespace", "kube-system", "namespace of the leases")
	set.StringVar(&f.leaseLabel, "lease-label", "k8s-app=konnectivity-server", "labels of the leases")
}

func (f *flags) addObservation(set *pflag.FlagSet) {
	set.IntVar(&f.healthPort.Number, "health-port", 8092, "port for /healthz, /readyz, /ready and /metrics; 0: none")
	set.StringVar(&f.healthPort.Host, "health-bind-address", "", "address for the same (default: all)")
	set.IntVar(&f.adminPort.Number, "admin-port", 8095, "port for the status page /, its API /api/v1/, /metrics and /debug/pprof; 0: none")
	set.StringVar(&f.adminPort.Host, "admin-bind-address", "127.0.0.1", "address for the same; empty: all")
	set.StringVar(&f.adminToken, "admin-token-file", "", "file with the token, at least 32 characters, that the admin port requires; a tenant's reader-token is accepted too, and shows that tenant alone; reread when it changes (default: whoever reaches the port sees all)")
	set.StringVar(&f.admin.Cert, "admin-cert", "", "certificate file of the admin port, which then speaks TLS; whoever has a certificate of a tenant's clients sees that tenant alone (default: plain HTTP)")
	set.StringVar(&f.admin.Key, "admin-key", "", "private key file of --admin-cert")
	set.StringVar(&f.admin.CA, "admin-ca-cert", "", "CA file: the admin port requires a certificate for clients that chains to it, or a token (default: whoever reaches the port sees all)")
	set.StringVar(&f.admin.CRL, "admin-ca-crl", "", "file with revocation lists, PEM or DER, of CAs in --admin-ca-cert: certificates that they name show nothing any more; reread when it changes")
	set.BoolVar(&f.options.Profiles, "enable-profiling", false, "serve /debug/pprof on the admin port")
	set.BoolVar(&f.options.ContentionProfiles, "enable-contention-profiling", false, "profile lock contention too; needs --enable-profiling")
}

func (f *flags) addDeprecated(set *pflag.FlagSet) {
	set.IntVar(&f.xfrChannelSize, "xfr-channel-size", 10, "no effect: connections are limited in bytes")
	set.Bool("warn-on-channel-limit", true, "no effect: there is no such channel")
}

// notes are warnings about flags that were given without effect, or that are unsafe.
func (f *flags) notes() []string {
	var notes []string
	for _, note := range []struct {
		applies bool
		text    string
	}{
		{f.set.Changed("xfr-channel-size"), "--xfr-channel-size has no effect: what a connection may hold is bounded in bytes"},
		{f.set.Changed("warn-on-channel-limit"), "--warn-on-channel-limit is deprecated and has no effect"},
		{f.tlsMin == "VersionTLS10" || f.tlsMin == "VersionTLS11", "--tls-min-version=" + f.tlsMin + " is insecure (RFC 8996); TLS 1.2 is the least that is spoken"},
		{f.networks.HasAll(), "--agent-proxy-protocol-from trusts everybody: whoever reaches the agent port can pretend to have any address"},
		{f.allowUnauthenticated && !f.agentsAuthenticate(), "--allow-unauthenticated-agents: whoever reaches the agent port can become an agent and see the traffic"},
	} {
		if note.applies {
			notes = append(notes, note.text)
		}
	}
	return notes
}

func (f *flags) tokenAuth() bool {
	return f.agentAccount != (auth.Account{}) || f.tokens.Audience != ""
}

func (f *flags) agentsAuthenticate() bool { return f.cluster.CA != "" || f.tokenAuth() }

// clientTCP reports whether clients are served over TCP.
func (f *flags) clientTCP() bool { return f.clientPort.Number > 0 && f.server.Cert != "" }

// serverID is the id of the flag, or else of the environment; "" if neither gives one.
func (f *flags) serverID() string { return cmp.Or(f.options.ID, os.Getenv("PROXY_SERVER_ID")) }

// validate checks the flags, and parses those that are lists or names. Its error is a
// *cli.UsageError, except where a file does not exist.
func (f *flags) validate() error {
	for _, check := range []func() error{f.checkNumbers, f.checkValues, f.checkClients, f.checkAgents, f.checkPeers, f.checkTenants, f.checkAdmin, f.checkFiles} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (f *flags) checkNumbers() error {
	f.clientPort.Unused, f.peerPort.Unused = !f.clientTCP(), !f.hasPeers()
	o, qps := &f.options, f.tokens.PerSecond
	if err := cmp.Or(
		cli.CheckPorts(f.agentPort, f.healthPort, f.adminPort, f.clientPort, f.peerPort),
		cli.NotNegative("graceful-shutdown-timeout", o.Grace),
		cli.NotNegative("backend-dial-timeout", o.DialTimeout),
		cli.CheckValue("resume-window", o.ResumeWindow, resume.CheckWindow(o.ResumeWindow)),
		cli.AtLeast("keepalive-time", o.Keepalive, time.Second),
		cli.AtLeast("frontend-keepalive-time", o.ClientKeepalive, time.Second),
		cli.AtLeast("server-count", o.Count, 1),
		cli.AtLeast("xfr-channel-size", f.xfrChannelSize, 1),
		cli.AtLeast("max-connections", o.MaxConns, 1),
		cli.AtLeast("kubeconfig-qps", qps, 0),
		cli.AtLeast("kubeconfig-burst", f.tokens.Burst, 0),
		cli.CheckValue("memory-budget-mib", f.budgetMiB, link.CheckBudgetMiB(f.budgetMiB)),
	); err != nil {
		return err
	}
	if math.IsNaN(float64(qps)) || math.IsInf(float64(qps), 0) {
		return cli.Usagef("--kubeconfig-qps=%v: must be a number of calls, or 0 for the default", qps)
	}
	return nil
}

func (f *flags) checkValues() error {
	_, allow := policy.Parse(f.allow, nil)
	_, deny := policy.Parse(nil, f.deny)
	return cmp.Or(
		f.peers.Check(),
		f.parseAccounts(),
		cli.Parse(&f.options.Strategies, "proxy-strategies", f.strategies, registry.ParseStrategies),
		cli.Parse(&f.tls.MinVersion, "tls-min-version", f.tlsMin, tlsreload.ParseVersion),
		cli.Parse(&f.tls.CipherSuites, "cipher-suites", f.ciphers, tlsreload.ParseCipherSuites),
		cli.CheckGiven(f.set, "audit-log", "agent-proxy-protocol-from", "allow-destination", "deny-destination", "peer-trust-domain",
			"agent-identifier-allow-file", "policy-file", "admin-token-file", "admin-ca-cert", "server-ca-crl", "cluster-ca-crl",
			"peer-ca-crl", "admin-ca-crl", "peer-servers"),
		cli.Parse(&f.networks, "agent-proxy-protocol-from", f.proxies, admission.ParseNetworks),
		cli.CheckPair(f.set, "server-cert", "server-key"),
		cli.CheckPair(f.set, "cluster-cert", "cluster-key"),
		cli.CheckPair(f.set, "peer-cert", "peer-key"),
		cli.CheckPair(f.set, "admin-cert", "admin-key"),
		cli.FlagError("allow-destination", allow),
		cli.FlagError("deny-destination", deny),
		cli.FlagError("api-server", tenant.CheckAPIServers(f.options.APIServers)),
		f.checkID(),
	)
}

// checkID checks that the id fits into gRPC metadata and, with leases, into the name
// of one.
func (f *flags) checkID() error {
	id := f.serverID()
	if err := cli.CheckID("server-id", id, link.MaxID); err != nil {
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

// parseAccounts reads --client-service-accounts.
func (f *flags) parseAccounts() error {
	f.clientTokens.Accounts = nil
	for _, text := range f.clientAccounts {
		namespace, name, _ := strings.Cut(text, "/")
		if len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Subdomain(name)) > 0 {
			return cli.Usagef("--client-service-accounts=%s: want NAMESPACE/NAME of a service account", text)
		}
		f.clientTokens.Accounts = append(f.clientTokens.Accounts, auth.Account{Namespace: namespace, Name: name})
	}
	return nil
}

func (f *flags) checkClients() error {
	switch {
	case f.clientTCP() && f.server.CA == "" && len(f.clientAccounts) == 0:
		return cli.Usagef("--server-ca-cert is missing: without it anybody who reaches --server-port could use the tunnel")
	case len(f.clientAccounts) > 0 && f.clientTokens.Audience == "":
		return cli.Usagef("--client-authentication-audience is missing: --client-service-accounts needs it")
	case len(f.clientAccounts) == 0 && f.clientTokens.Audience != "":
		return cli.Usagef("--client-authentication-audience needs --client-service-accounts")
	case len(f.clientAccounts) == 0 && !f.clientReview && f.clientKubeconfig != "":
		return cli.Usagef("--client-kubeconfig needs --client-service-accounts or --client-access-review")
	case len(f.clientAccounts) > 0 && !f.clientTCP():
		return cli.Usagef("--client-service-accounts needs --server-port, --server-cert and --server-key: a unix socket has no tokens")
	case f.server.CA == "" && f.server.CRL != "":
		return cli.Usagef("--server-ca-crl needs --server-ca-cert")
	case f.server.Cert == "" && f.server.CA != "":
		return cli.Usagef("--server-ca-cert needs --server-cert and --server-key")
	case f.server.Cert != "" && f.clientPort.Number == 0:
		return cli.Usagef("--server-cert is given and --server-port is 0: a unix socket has no TLS")
	case f.uds != "" && f.set.Changed("server-port") && f.clientPort.Number > 0 && f.server.Cert == "":
		return cli.Usagef("--server-port=%d needs --server-cert, --server-key and --server-ca-cert; set it to 0 for --uds-name alone", f.clientPort.Number)
	case f.uds == "" && !f.clientTCP():
		return cli.Usagef("no port for clients: give --server-cert, --server-key and --server-ca-cert, or --uds-name")
	}
	return nil
}

func (f *flags) checkAgents() error {
	switch {
	case f.cluster.Cert == "":
		return cli.Usagef("--cluster-cert and --cluster-key are missing: agents connect over TLS only")
	case f.tokenAuth() && f.cluster.CA != "":
		return cli.Usagef("--cluster-ca-cert and authentication by token (--agent-namespace, --agent-service-account, --authentication-audience) exclude each other")
	case !f.agentsAuthenticate() && !f.allowUnauthenticated:
		return cli.Usagef("agents could connect without authentication: give --cluster-ca-cert, or --agent-namespace, --agent-service-account and --authentication-audience; or say --allow-unauthenticated-agents")
	case f.cluster.CA == "" && f.cluster.CRL != "":
		return cli.Usagef("--cluster-ca-crl needs --cluster-ca-cert")
	case f.cluster.CA == "" && f.idPolicy == tenant.NamesOfCertificate:
		return cli.Usagef("--agent-id-policy=certificate needs --cluster-ca-cert")
	case f.identifierFile != "" && f.identifierPolicy != tenant.NamesOfCertificate:
		return cli.Usagef("--agent-identifier-allow-file needs --agent-identifier-policy=certificate")
	}
	for _, part := range []string{"agent-namespace", "agent-service-account", "authentication-audience"} {
		if f.tokenAuth() && cli.Text(f.set, part) == "" {
			return cli.Usagef("--%s is missing: authentication by token needs --agent-namespace, --agent-service-account and --authentication-audience", part)
		}
	}
	return nil
}

// hasPeers says whether there are other servers to forward to.
func (f *flags) hasPeers() bool { return len(f.peering.Addresses) > 0 || f.advertise != "" }

func (f *flags) checkPeers() error {
	if len(f.options.APIServers) > 0 && f.link == link.Off {
		return cli.Usagef("--api-server and --link=off exclude each other: agents reach it by links")
	}
	if slices.Contains(f.options.APIServers, tenant.APIByAgent) && !f.clientTCP() {
		return cli.Usagef("--api-server=%s needs --server-cert, --server-key and --server-ca-cert: that agent connects to the port for clients", tenant.APIByAgent)
	}
	if f.advertise != "" {
		ip, err := netip.ParseAddr(f.advertise)
		switch {
		case err != nil || ip.IsUnspecified() || ip.Zone() != "":
			return cli.Usagef("--peer-advertise-address=%q: want the address by which other servers reach this one", f.advertise)
		case !f.leases:
			return cli.Usagef("--peer-advertise-address needs --enable-lease-controller, whose lease publishes it")
		case f.peering.ServerName == "":
			return cli.Usagef("--peer-advertise-address needs --peer-server-name, the name in the servers' certificates")
		}
		f.advertised = ip.Unmap()
	}
	if !f.hasPeers() {
		for _, name := range []string{"peer-port", "peer-bind-address", "peer-server-name", "peer-cert", "peer-ca-cert", "peer-ca-crl"} {
			if f.set.Changed(name) {
				return cli.Usagef("--%s needs --peer-servers or --peer-advertise-address", name)
			}
		}
		return nil
	}
	for _, text := range f.peering.Addresses {
		if _, _, err := tunnel.SplitAddress(text); err != nil {
			return cli.Usagef("--peer-servers=%q: want HOST:PORT", text)
		}
	}
	if f.link == link.Off {
		return cli.Usagef("--link=off excludes --peer-servers and --peer-advertise-address: servers forward to one another by links")
	}
	if f.peer.Cert == "" {
		f.peer.Cert, f.peer.Key = f.cluster.Cert, f.cluster.Key
	}
	f.peer.CA = cmp.Or(f.peer.CA, f.cluster.CA)
	if filepath.Clean(f.peer.CA) == filepath.Clean(f.cluster.CA) { // also where --peer-ca-cert names it
		f.peer.CRL = cmp.Or(f.peer.CRL, f.cluster.CRL)
	}
	if f.peer.CA == "" {
		return cli.Usagef("--peer-ca-cert is missing: without it, and without --cluster-ca-cert, anybody could be another server")
	}
	return nil
}

func (f *flags) checkAdmin() error {
	switch {
	case f.adminToken != "" && f.adminPort.Number == 0:
		return cli.Usagef("--admin-token-file needs --admin-port")
	case f.admin.Cert != "" && f.adminPort.Number == 0:
		return cli.Usagef("--admin-cert needs --admin-port")
	case f.admin.CA != "" && f.admin.Cert == "":
		return cli.Usagef("--admin-ca-cert needs --admin-cert and --admin-key: certificates are shown over TLS")
	case f.admin.CA == "" && f.admin.CRL != "":
		return cli.Usagef("--admin-ca-crl needs --admin-ca-cert")
	case f.options.ContentionProfiles && !f.options.Profiles:
		return cli.Usagef("--enable-contention-profiling needs --enable-profiling")
	}
	return nil
}

func (f *flags) checkTenants() error {
	flag := "--tenants-dir"
	if f.tenantsNamespace != "" {
		flag = "--tenants-namespace"
	}
	switch {
	case f.tenantsDir != "" && f.tenantsNamespace != "":
		return cli.Usagef("--tenants-dir and --tenants-namespace exclude each other: tenants are folders or Secrets")
	case (f.tenantsDir != "" || f.tenantsNamespace != "") && !f.clientTCP():
		return cli.Usagef("%s needs --server-port with --server-cert, --server-key and --server-ca-cert: tenants' clients are told apart in the TLS handshake", flag)
	case f.tenantsNamespace == "" && f.set.Changed("tenants-selector"):
		return cli.Usagef("--tenants-selector needs --tenants-namespace")
	case f.tenantsNamespace != "" && len(validation.IsDNS1123Label(f.tenantsNamespace)) > 0:
		return cli.Usagef("--tenants-namespace=%q is not the name of a namespace", f.tenantsNamespace)
	}
	selector, err := labels.Parse(f.tenantsSelector)
	if err == nil && selector.Empty() {
		return cli.Usagef("--tenants-selector is empty: it would select every Secret of the namespace")
	}
	return cli.FlagError("tenants-selector", err)
}

func (f *flags) checkFiles() error {
	return cli.CheckFiles(f.set, "server-cert", "server-key", "server-ca-cert", "cluster-cert", "cluster-key", "cluster-ca-cert",
		"admin-cert", "admin-key", "admin-ca-cert", "peer-cert", "peer-key", "peer-ca-cert",
		"server-ca-crl", "cluster-ca-crl", "peer-ca-crl", "admin-ca-crl", "kubeconfig", "client-kubeconfig",
		"admin-token-file", "agent-identifier-allow-file", "policy-file")
}
