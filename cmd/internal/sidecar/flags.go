package sidecar

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/adapters"
	"konnectivity/adapters/uplink"
	"konnectivity/httpsproxy"
	"konnectivity/internal/audit"
	"konnectivity/internal/cli"
	"konnectivity/internal/unixsocket"
	"konnectivity/socks5"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// defaultDrain leaves a pod's usual 30 s of grace some room.
const defaultDrain = 25 * time.Second

// AddFlags defines every flag of a sidecar on cmd, with the titles under which
// help shows them, and has those of the server follow the environment where they are not
// given. o.Program and o.Front must be set.
func (o *Options) AddFlags(cmd *cobra.Command) {
	cli.AddFlags(cmd, "Konnectivity server", o.serverFlags)
	cli.AddFlags(cmd, "Listening", o.listenFlags)
	cli.AddFlags(cmd, "Names of the hosted cluster", o.hostedFlags)
	cli.AddFlags(cmd, "Connections that bypass the tunnel", o.directFlags)
	cli.AddFlags(cmd, "SOCKS5", o.socks5Flags)
	cli.AddFlags(cmd, "HTTP and HTTPS", o.httpFlags)
	cli.AddFlags(cmd, "Observation", o.observeFlags)
	cli.AddFlags(cmd, "Traces", o.traces.AddTo)
	o.set = cmd.Flags()
	cmd.PreRunE = o.fromEnvironment
}

func (o *Options) serverFlags(set *pflag.FlagSet) {
	o.server = set
	set.StringVar(&o.ServerHost, "konnectivity-hostname", "konnectivity-server-local", "name or IP address of the konnectivity server")
	portVar(set, &o.ServerPort, "konnectivity-port", 8090, "port of the konnectivity server for clients")
	set.StringVar(&o.Out.Server.ServerName, "server-name", "", "name to ask the server for in TLS (SNI), which its certificate must have (default: --konnectivity-hostname)")
	set.StringVar(&o.Files.CA, "ca-cert-path", "/etc/konnectivity/proxy-ca/ca.crt", "CA file for verifying the server's certificate")
	set.StringVar(&o.Files.Cert, "tls-cert-path", "/etc/konnectivity/proxy-client/tls.crt", "client certificate")
	set.StringVar(&o.Files.Key, "tls-key-path", "/etc/konnectivity/proxy-client/tls.key", "key of the client certificate")
	set.StringVar(&o.TokenFile, "token-path", "", "file with a service account token, read at every connect, to show the server instead of a certificate: --tls-cert-path and --tls-key-path have no default then; the server needs --client-service-accounts")
	o.Peers.AddTo(set, "servers")
	set.DurationVar(&o.Out.Server.ResumeWindow, "resume-window", resume.DefaultWindow, "how long a connection that has lost its link waits to be resumed over another, to any server; at most 10m; 0: it ends with its link")
	set.IntVar(&o.Out.Server.Lanes, "link-lanes", lanes.MaxLanes, fmt.Sprintf("how many TCP connections a link to a server may have where one is not enough: on a far line, or for more bulk than one core decrypts; at most %d; 1: only one", lanes.MaxLanes))
	set.IntVar(&o.Out.Server.MaxServers, "max-servers", 0, "to how many servers to keep links where the name has more addresses, each sidecar to a choice of its own; only where servers forward to one another (--peer-servers), since others do not reach all agents; 0: to all")
	cli.Choice(set, &o.Out.Server.Mode, "link", link.Auto, "native link to the server: auto (if the server supports it, else HTTP CONNECT), off or require", link.Auto, link.Off, link.Require)
}

// fromEnvironment sets the flags of the server that were not given and have a variable. Its
// error is a usage error that names the variable.
func (o *Options) fromEnvironment(*cobra.Command, []string) (failed error) {
	o.server.VisitAll(func(f *pflag.Flag) {
		name, value, ok := uplink.Variable(f.Name, os.LookupEnv)
		if !ok || f.Changed || failed != nil {
			return
		}
		if err := o.set.Set(f.Name, value); err != nil {
			failed = cli.Usagef("%s: %w", name, err)
		}
	})
	return failed
}

func (o *Options) listenFlags(set *pflag.FlagSet) {
	o.uds.Replace = true
	set.StringVar(&o.ServingAddress, "serving-address", "127.0.0.1", "IP address to listen on; any address but loopback lets others use the tunnel")
	portVar(set, &o.ServingPort, "serving-port", 8090, "port of the "+o.Front.title()+" proxy; 0 picks a free one, or disables it where --serving-uds is given")
	set.StringVar(&o.ServingUDS, "serving-uds", "", "path of a unix socket for the same proxy, for example for kube-apiserver's egress selector. A socket file that an earlier process left behind is replaced; a socket in use, or a file that is no socket, never")
	cli.Var(set, &o.uds.Mode, unixsocket.ParseMode, "serving-uds-mode", "octal", fmt.Sprintf("%04o", unixsocket.DefaultMode), "permissions of --serving-uds; who may write may connect")
	cli.Var(set, &o.uds.Owner, unixsocket.ParseOwner, "serving-uds-owner", "owner", "", "USER, USER:GROUP or :GROUP, by name or number, to whom --serving-uds belongs (default: this process's)")
	portVar(set, &o.SecondPort, o.secondFlag(), 0, "serve "+o.second().title()+" too, on this port, which may be that of --serving-port; 0 disables it")
	portVar(set, &o.transparentPort, "transparent-port", 0, "accept connections that konnectivity redirect sends to this loopback port, from programs that know no proxy, and connect them to their original destinations; 0 disables it; Linux only")
	set.BoolVar(&o.answerProbes, "answer-tcp-probes", false, "accept connections to the same ports at this host's other addresses, which kubelet's TCP probes use, and close them at once")
	set.IntVar(&o.fronts.MaxConns, "max-connections", 0, fmt.Sprintf("maximum number of open client connections for each proxy; 0 means %d for SOCKS5 and redirected ones, and %d for HTTP(S), which costs more",
		socks5.DefaultMaxConns, httpsproxy.DefaultMaxConns))
	set.DurationVar(&o.dial, "dial-timeout", tunnel.DefaultDialTimeout, "how long a dial to a destination may take; reaching the server may take half of that, but at least 5s and at most 15s")
	set.DurationVar(&o.idle, "idle-timeout", 0, "reset connections that carry nothing for this long; 0 disables it")
	set.DurationVar(&o.delay, "shutdown-delay", 0, "how long to go on as before after SIGTERM, for clients in the same pod that do so; then --drain-timeout begins")
	set.DurationVar(&o.fronts.Drain, "drain-timeout", defaultDrain, "how long open connections may go on after SIGTERM")
}

func (o *Options) hostedFlags(set *pflag.FlagSet) {
	set.StringVar(&o.Out.Hosted.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file of the hosted cluster, to look up its services (default: the environment's KUBECONFIG)")
	set.StringVar(&o.Out.Hosted.GuestDNSService, "guest-dns-service", adapters.DefaultGuestDNSService, "NAMESPACE/NAME of the hosted cluster's DNS service")
	set.BoolVar(&o.Out.Hosted.PreferIPv4, "prefer-ipv4", false, "try a name's IPv4 addresses first")
}

func (o *Options) directFlags(set *pflag.FlagSet) {
	set.BoolVar(&o.Out.Direct.CloudAPIs, "connect-directly-to-cloud-apis", false, "connect to the APIs of known clouds without the tunnel, through HTTPS_PROXY unless NO_PROXY matches")
	set.StringSliceVar(&o.Out.Direct.Suffixes, "direct-suffix", nil, "connect to hosts under this domain without the tunnel; repeatable")
}

func (o *Options) socks5Flags(set *pflag.FlagSet) {
	set.BoolVar(&o.Out.SOCKS5.GuestDNS, "resolve-from-guest-cluster-dns", false, "look up names in the hosted cluster's DNS, through the tunnel")
	set.BoolVar(&o.Out.SOCKS5.ManagementFallback, "resolve-from-management-cluster-dns", false, "when the hosted cluster's DNS cannot be reached, use this cluster's and connect without the tunnel")
	set.BoolVar(&o.Out.SOCKS5.Disabled, "disable-resolver", false, "leave every name to the agent")
	set.StringVar(&o.credentialsFile, "socks5-credentials-file", "", "make clients of both proxies authenticate with a user and password from this file of user:password lines, which is reread when it changes")
}

func (o *Options) httpFlags(set *pflag.FlagSet) {
	set.StringVar(&o.Out.HTTPS.HTTPProxy, "http-proxy", "", "URL of the proxy, behind the tunnel, for plain HTTP requests")
	set.StringVar(&o.Out.HTTPS.HTTPSProxy, "https-proxy", "", "URL of the proxy, behind the tunnel, for CONNECT requests")
	set.StringVar(&o.Out.HTTPS.NoProxy, "no-proxy", "", "hosts that are reached without --http-proxy and --https-proxy: comma-separated names, suffixes, CIDRs, host:port or *")
	set.StringSliceVar(&o.Out.HTTPS.CACertPaths, "proxy-ca-cert-path", nil, "CA bundle, or directory of bundles, for https:// proxies, in addition to the system's; repeatable; reread when it changes")
}

func (o *Options) observeFlags(set *pflag.FlagSet) {
	set.StringVar(&o.healthAddress, "health-address", "", "serve /healthz, /readyz and /metrics on this IP:PORT; empty disables it")
	set.StringVar(&o.adminAddress, "admin-address", "", "serve the status page / and its API /api/v1/ on this IP:PORT; :PORT means loopback; empty disables it")
	set.BoolVar(&o.fronts.AccessLog, "access-log", false, "log every connection and request at info instead of debug")
	audit.AddFlag(set, &o.auditLog)
}

func (f Front) title() string {
	if f == SOCKS5 {
		return "SOCKS5"
	}
	return "HTTP(S)"
}

// noArgs accepts no argument, or the word run, for manifests of the programs that the
// sidecars replace.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] == "run" {
		return nil
	}
	return cli.NoArgs(cmd, args)
}

func portVar(set *pflag.FlagSet, to *uint16, name string, initial uint16, usage string) {
	cli.Var(set, to, parsePort, name, "port", strconv.Itoa(int(initial)), usage)
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, errors.New("want a port from 0 to 65535")
	}
	return uint16(n), nil
}
