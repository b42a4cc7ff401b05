// Package sidecar implements konnectivity-socks5-proxy and konnectivity-https-proxy,
// which differ in the front of --serving-port: their flags, and the composition of
// fronts, adapter, certificates and health.
//
// A sidecar owns these parts and every listener from its start until run returns.
// Besides the two programs, `konnectivity check` uses the Options.
package sidecar

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"konnectivity/adapters"
	"konnectivity/internal/cli"
	"konnectivity/internal/front"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/traces"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Front is a protocol that clients speak to a sidecar.
type Front string

// The fronts.
const (
	SOCKS5 Front = "socks5"
	HTTP   Front = "http"

	Transparent Front = "transparent" // for redirected connections of programs that know no proxy
)

// Options are the flags of a sidecar. AddFlags sets the defaults.
type Options struct {
	Program string // its name, in logs and to the server
	Front   Front  // of --serving-port

	ServingAddress  string
	ServingPort     uint16 // 0 takes any free port, or none if there is a ServingUDS
	ServingUDS      string // path of a unix socket with the front of ServingPort; "" for none
	SecondPort      uint16 // of the other front; 0 for none; may equal ServingPort
	transparentPort uint16 // on loopback, whatever ServingAddress is; 0 for none
	answerProbes    bool   // accepts TCP probes on the addresses that are not served

	uds    unixsocket.Options
	fronts front.Options    // MaxConns, Drain and AccessLog
	delay  time.Duration    // from SIGTERM to the end of accepting
	idle   time.Duration    // bound of connections that carry nothing; 0 for none
	dial   time.Duration    // bound of each
	Out    adapters.Options // how destinations are reached
	Files  tlsreload.Files  // client certificate and the server's CA
	Peers  cli.PeerFlags    // requirements on the server's certificate

	ServerHost string
	ServerPort uint16
	TokenFile  string // "" for none

	credentialsFile string // for SOCKS5 and HTTP; "" for none
	healthAddress   string // "" for none
	auditLog        string // "" for none
	traces          traces.Flags
	adminAddress    string // "" for none; without a host it is loopback

	set    *pflag.FlagSet // the flags, to see which were given
	server *pflag.FlagSet // those of them that say how the server is reached
}

// serves reports whether front has a port.
func (o *Options) serves(front Front) bool { return front == o.Front || o.SecondPort != 0 }

// servesTCP reports whether --serving-port is a port.
func (o *Options) servesTCP() bool { return o.ServingPort != 0 || o.ServingUDS == "" }

// shared reports whether SOCKS5 and HTTP are on one port.
func (o *Options) shared() bool { return o.SecondPort != 0 && o.SecondPort == o.ServingPort }

// second is the front that is off by default.
func (o *Options) second() Front {
	if o.Front == SOCKS5 {
		return HTTP
	}
	return SOCKS5
}

// secondFlag is the flag with the port of the second front.
func (o *Options) secondFlag() string { return string(o.second()) + "-serving-port" }

// check checks the values by themselves. Its error is a usage error that names the
// flag and the accepted values.
func (o *Options) check() error {
	server := &o.Out.Server
	switch {
	case !bindable(o.ServingAddress):
		return cli.Usagef("--serving-address: want an IP address or localhost, got %q", o.ServingAddress)
	case o.fronts.MaxConns < 0:
		return cli.Usagef("--max-connections: want 0 for the default or at least 1, got %d", o.fronts.MaxConns)
	case server.MaxServers < 0:
		return cli.Usagef("--max-servers: want 0 for all or at least 1, got %d", server.MaxServers)
	case o.idle < 0:
		return cli.Usagef("--idle-timeout: want 0 for none or a positive duration, got %v", o.idle)
	case o.dial <= 0:
		return cli.Usagef("--dial-timeout: want a positive duration, got %v", o.dial)
	case o.delay < 0:
		return cli.Usagef("--shutdown-delay: want 0 or a positive duration, got %v", o.delay)
	case o.fronts.Drain < 0:
		return cli.Usagef("--drain-timeout: want 0 or a positive duration, got %v", o.fronts.Drain)
	case (o.Files.Cert == "") != (o.Files.Key == ""):
		return cli.Usagef("--tls-cert-path and --tls-key-path: want both or neither")
	}
	return cmp.Or(
		o.CheckServer(),
		cli.CheckValue("resume-window", server.ResumeWindow, resume.CheckWindow(server.ResumeWindow)),
		cli.CheckValue("link-lanes", server.Lanes, lanes.CheckMax(server.Lanes)),
		o.Peers.Check(),
		cli.CheckGiven(o.set, "audit-log", "token-path", "socks5-credentials-file", "peer-trust-domain"),
		o.checkTransparent(),
		checkAddress("health-address", o.healthAddress),
		checkAddress("admin-address", o.adminAddress),
	)
}

// CheckServer returns a usage error if the flags do not name a server. With a token, it takes
// the defaults of the certificate's files away.
func (o *Options) CheckServer() error {
	if o.TokenFile != "" && !o.set.Changed("tls-cert-path") && !o.set.Changed("tls-key-path") {
		o.Files.Cert, o.Files.Key = "", ""
	}
	switch {
	case !tunnel.ValidHost(o.ServerHost):
		return cli.Usagef("--konnectivity-hostname: want the name or IP address of the konnectivity server, without a port (see --konnectivity-port), got %q", o.ServerHost)
	case o.ServerPort == 0:
		return cli.Usagef("--konnectivity-port: want a port from 1 to 65535, got 0")
	}
	return cli.CheckServerName(o.Out.Server.ServerName)
}

// checkAddress accepts "", IP:PORT and :PORT.
func checkAddress(flag, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = parsePort(port)
	}
	if address != "" && (err != nil || host != "" && !bindable(host)) {
		return cli.Usagef("--%s: want IP:PORT or :PORT, got %q", flag, address)
	}
	return nil
}

// usageError turns the adapter's refusal of an option into a usage error that names the flag.
func usageError(err error) error {
	flags := map[string]string{
		"Server":                 "konnectivity-hostname",
		"Hosted.GuestDNSService": "guest-dns-service",
		"Direct.Suffixes":        "direct-suffix",
		"HTTPS.HTTPProxy":        "http-proxy",
		"HTTPS.HTTPSProxy":       "https-proxy",
	}
	if option, ok := errors.AsType[*adapters.OptionError](err); ok && flags[option.Option] != "" {
		return cli.FlagError(flags[option.Option], option.Err)
	}
	return cli.Usagef("%w", err)
}

// bindable reports whether host is an address to listen on without DNS.
func bindable(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost"
}

// warnIneffective logs which flags were given without effect. They are not errors: a
// command line that worked before must go on working.
func (o *Options) warnIneffective(log logrus.FieldLogger) {
	needs := func(need string, unmet bool, flags ...string) {
		for _, flag := range flags {
			if unmet && o.set.Changed(flag) {
				log.Warnf("--%s has no effect without %s", flag, need)
			}
		}
	}
	second, resolves := "--"+o.secondFlag(), o.serves(SOCKS5) && !o.Out.SOCKS5.Disabled
	needs("links, and --link is off", o.Out.Server.Mode == link.Off, "resume-window", "link-lanes")
	needs("--traces-endpoint", !o.set.Changed("traces-endpoint"), "traces-ratio")
	needs("--serving-uds", o.ServingUDS == "", "serving-uds-mode", "serving-uds-owner")
	needs("a system on which a socket's file decides who may connect; here its folder does",
		o.ServingUDS != "" && !unixsocket.Guarded, "serving-uds-mode", "serving-uds-owner")
	needs("a port, and --serving-port is 0", !o.servesTCP() && o.SecondPort == 0, "answer-tcp-probes")
	needs(second, !o.serves(HTTP), "http-proxy", "https-proxy", "no-proxy", "proxy-ca-cert-path")
	needs(second, !o.serves(SOCKS5), "resolve-from-guest-cluster-dns", "resolve-from-management-cluster-dns", "disable-resolver")
	needs("--disable-resolver=false", o.serves(SOCKS5) && !resolves, "resolve-from-guest-cluster-dns", "resolve-from-management-cluster-dns")
	needs("--resolve-from-guest-cluster-dns", resolves && !o.Out.SOCKS5.GuestDNS, "resolve-from-management-cluster-dns")
	needs("--kubeconfig or KUBECONFIG", o.Out.Hosted.Kubeconfig == "", "resolve-from-guest-cluster-dns", "guest-dns-service")
}
