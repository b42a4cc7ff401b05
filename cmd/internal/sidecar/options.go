// Package sidecar is what konnectivity-socks5-proxy and konnectivity-https-proxy
// share: their flags, and how the fronts, the adapter, certificates and health
// are put together. The programs differ in which front --serving-port is for.
//
// A sidecar owns all of these, and every listener, from its start until run
// returns. Besides the two mains, `konnectivity check` reads its Options.
package sidecar

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"konnectivity/adapters"
	"konnectivity/internal/cli"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Front is one of the protocols that clients speak to a sidecar.
type Front string

// The fronts.
const (
	SOCKS5 Front = "socks5"
	HTTP   Front = "http"

	Transparent Front = "transparent" // which programs do not speak to knowingly
)

// Options are what a sidecar's flags say. The flag methods set the defaults.
type Options struct {
	Program string // its name, in logs and to the server
	Front   Front  // what --serving-port serves

	ServingAddress string
	ServingPort    uint16      // 0 takes any free port, or none if there is a ServingUDS
	ServingUDS     string      // path of a unix socket that serves what ServingPort does; "": none
	udsMode        os.FileMode // 0 is unixsocket's default
	udsOwner       *unixsocket.Owner
	SecondPort     uint16        // the other front's port; 0: no other front; may equal ServingPort
	maxConnections int           // of each front; 0 is the front's own default
	idleTimeout    time.Duration // 0: no bound
	drainTimeout   time.Duration
	answerProbes   bool // by TCP, on the addresses that are not served

	transparentPort uint16 // on loopback, whatever ServingAddress is; 0: off

	ServerHost string
	ServerPort uint16
	serverName string // "" is ServerHost
	Link       link.Mode
	Files      tlsreload.Files // client certificate and the server's CA
	Peers      cli.PeerFlags   // what the server's certificate must say

	resumeWindow time.Duration // 0: connections do not outlive their links
	lanes        int           // how many connections a link has at most

	Hosted  adapters.HostedOptions
	direct  adapters.DirectOptions
	Resolve adapters.ResolvePolicy // of the SOCKS5 front
	Proxies adapters.HTTPSOptions  // of the HTTP front

	credentialsFile string // of both fronts
	healthAddress   string // "" is off
	adminAddress    string // "" is off; without a host it is loopback
	accessLog       bool

	set *pflag.FlagSet // to see what was given
}

// serves says whether front has a port.
func (o *Options) serves(front Front) bool { return front == o.Front || o.SecondPort != 0 }

// servesTCP says whether --serving-port is a port.
func (o *Options) servesTCP() bool { return o.ServingPort != 0 || o.ServingUDS == "" }

// shared says whether both fronts are on one port.
func (o *Options) shared() bool { return o.SecondPort != 0 && o.SecondPort == o.ServingPort }

// second is the front that has no port unless asked for.
func (o *Options) second() Front {
	if o.Front == SOCKS5 {
		return HTTP
	}
	return SOCKS5
}

// secondFlag is the flag that gives the second front its port.
func (o *Options) secondFlag() string { return string(o.second()) + "-serving-port" }

// check finds what the values themselves show to be wrong. Its error is a
// usage error that names the flag and what it accepts.
func (o *Options) check() error {
	switch {
	case !bindable(o.ServingAddress):
		return cli.Usagef("--serving-address: want an IP address or localhost, got %q", o.ServingAddress)
	case !tunnel.ValidHost(o.ServerHost):
		return o.BadServerHost()
	case o.ServerPort == 0:
		return cli.Usagef("--konnectivity-port: want a port from 1 to 65535, got 0")
	case o.maxConnections < 0:
		return cli.Usagef("--max-connections: want 0 for the default or at least 1, got %d", o.maxConnections)
	case o.idleTimeout < 0:
		return cli.Usagef("--idle-timeout: want 0 for none or a positive duration, got %v", o.idleTimeout)
	case resume.CheckWindow(o.resumeWindow) != nil:
		return cli.Usagef("--resume-window=%v: %v", o.resumeWindow, resume.CheckWindow(o.resumeWindow))
	case lanes.CheckMax(o.lanes) != nil:
		return cli.Usagef("--link-lanes=%d: %v", o.lanes, lanes.CheckMax(o.lanes))
	case o.drainTimeout < 0:
		return cli.Usagef("--drain-timeout: want 0 or a positive duration, got %v", o.drainTimeout)
	case (o.Files.Cert == "") != (o.Files.Key == ""):
		return cli.Usagef("--tls-cert-path and --tls-key-path: want both or neither")
	}
	if err := o.CheckServerName(); err != nil {
		return err
	}
	if err := o.Peers.Check(); err != nil {
		return err
	}
	if err := cli.CheckGiven(o.set, "socks5-credentials-file", "peer-trust-domain"); err != nil {
		return err
	}
	if err := o.checkTransparent(); err != nil {
		return err
	}
	for _, a := range []struct{ flag, address string }{{"health-address", o.healthAddress}, {"admin-address", o.adminAddress}} {
		if err := checkAddress(a.address); err != nil {
			return cli.Usagef("--%s: want IP:PORT or :PORT, got %q", a.flag, a.address)
		}
	}
	return nil
}

// BadServerHost is the usage error for a --konnectivity-hostname that is no host.
func (o *Options) BadServerHost() error {
	return cli.Usagef("--konnectivity-hostname: want the name or IP address of the konnectivity server, without a port (see --konnectivity-port), got %q", o.ServerHost)
}

// CheckServerName returns a usage error where no server can be asked for
// --server-name.
func (o *Options) CheckServerName() error {
	return cli.CheckServerName(cli.Value{Flag: "server-name", Text: o.serverName})
}

// checkAddress accepts "", IP:PORT and :PORT.
func checkAddress(address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if host != "" && !bindable(host) {
		return errAddress
	}
	_, err = parsePort(port)
	return err
}

// named is the adapter's refusal of an option as a usage error that names the
// flag.
func named(err error) error {
	flags := map[string]string{
		"Server":                 "konnectivity-hostname",
		"Hosted.GuestDNSService": "guest-dns-service",
		"Direct.Suffixes":        "direct-suffix",
		"HTTPS.HTTPProxy":        "http-proxy",
		"HTTPS.HTTPSProxy":       "https-proxy",
	}
	var option *adapters.OptionError
	if errors.As(err, &option) && flags[option.Option] != "" {
		return cli.Usagef("--%s: %w", flags[option.Option], option.Err)
	}
	return cli.Usagef("%w", err)
}

// bindable says whether host can be listened on without asking DNS.
func bindable(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost"
}

// needs are flags that do nothing unless another one is given.
var needs = []struct {
	flags []string
	unmet func(*Options) bool
	want  func(*Options) string
}{
	{
		[]string{"serving-uds-mode", "serving-uds-owner"},
		func(o *Options) bool { return o.ServingUDS == "" },
		func(*Options) string { return "--serving-uds" },
	},
	{
		[]string{"serving-uds-mode", "serving-uds-owner"},
		func(o *Options) bool { return o.ServingUDS != "" && !unixsocket.Guarded },
		func(*Options) string {
			return "a system on which a socket's file decides who may connect; here its folder does"
		},
	},
	{
		[]string{"answer-tcp-probes"},
		func(o *Options) bool { return !o.servesTCP() && o.SecondPort == 0 },
		func(*Options) string { return "a port, and --serving-port is 0" },
	},
	{
		[]string{"http-proxy", "https-proxy", "no-proxy", "proxy-ca-cert-path"},
		func(o *Options) bool { return !o.serves(HTTP) },
		func(o *Options) string { return "--" + o.secondFlag() },
	},
	{
		[]string{"resolve-from-guest-cluster-dns", "resolve-from-management-cluster-dns", "disable-resolver"},
		func(o *Options) bool { return !o.serves(SOCKS5) },
		func(o *Options) string { return "--" + o.secondFlag() },
	},
	{
		[]string{"resolve-from-guest-cluster-dns", "resolve-from-management-cluster-dns"},
		func(o *Options) bool { return o.serves(SOCKS5) && o.Resolve.Disabled },
		func(*Options) string { return "--disable-resolver=false" },
	},
	{
		[]string{"resolve-from-management-cluster-dns"},
		func(o *Options) bool { return o.serves(SOCKS5) && !o.Resolve.Disabled && !o.Resolve.GuestDNS },
		func(*Options) string { return "--resolve-from-guest-cluster-dns" },
	},
	{
		[]string{"resolve-from-guest-cluster-dns", "guest-dns-service"},
		func(o *Options) bool { return o.Hosted.Kubeconfig == "" },
		func(*Options) string { return "--kubeconfig or KUBECONFIG" },
	},
}

// sayIneffective logs, once, which flags were given in vain. They are no error:
// a command line that worked before must go on working.
func (o *Options) sayIneffective(log logrus.FieldLogger) {
	for _, n := range needs {
		if !n.unmet(o) {
			continue
		}
		for _, name := range n.flags {
			if o.set != nil && o.set.Changed(name) {
				log.Warnf("--%s has no effect without %s", name, n.want(o))
			}
		}
	}
}
