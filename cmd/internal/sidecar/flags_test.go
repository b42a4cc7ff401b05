package sidecar

import (
	"bytes"
	"flag"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"konnectivity/adapters"
	"konnectivity/client"
	"konnectivity/internal/admission"
	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// parse runs a command line through the real command, without serving.
func parse(t *testing.T, front Front, args ...string) (o *Options, status int, said string) {
	t.Helper()
	o = &Options{Program: "test", Front: front}
	cmd := &cobra.Command{Use: "test", Args: noArgs, RunE: func(*cobra.Command, []string) error { return o.check() }}
	o.AddFlags(cmd)
	cli.AddFlags(cmd, "Logging", new(cli.LogFlags).AddTo)
	var stderr bytes.Buffer
	status = cli.Run(cmd, append([]string{}, args...), &stderr, nil) // nil would be those of the test
	return o, status, stderr.String()
}

// Arguments of a sidecar can be copied to a program with the package client.
func TestClientHasTheSameFlags(t *testing.T) {
	theirs := flag.NewFlagSet("client", flag.ContinueOnError)
	new(client.Options).AddFlags(theirs)
	ours := pflag.NewFlagSet("sidecar", pflag.ContinueOnError)
	new(Options).serverFlags(ours)
	ours.VisitAll(func(f *pflag.Flag) {
		their := theirs.Lookup(f.Name)
		testutil.Holds(t, their != nil && their.DefValue == f.DefValue, "--%s: %+v", f.Name, their)
	})
}

// A flag goes before its variable, and the variable before the default.
func TestEnvironment(t *testing.T) {
	t.Setenv("KONNECTIVITY_ADDRESS", "proxy.example.com:9090")
	t.Setenv("KONNECTIVITY_LINK", "require")
	t.Setenv("KONNECTIVITY_LINK_LANES", "2")
	o, status, said := parse(t, HTTP, "--konnectivity-port=9091", "--link=off")
	if server := o.Out.Server; status != 0 || o.ServerHost != "proxy.example.com" || o.ServerPort != 9091 || server.Mode != link.Off || server.Lanes != 2 {
		t.Errorf("status %d, %s%s:%d, %+v", status, said, o.ServerHost, o.ServerPort, server)
	}
	t.Setenv("KONNECTIVITY_LINK", "maybe")
	if _, status, said := parse(t, HTTP); status != cli.ExitUsage || !strings.Contains(said, "KONNECTIVITY_LINK: ") || !strings.Contains(said, "must be one of auto, off, require") {
		t.Errorf("status %d, %q", status, said)
	}
}

func TestDefaultsMatchReplacedPrograms(t *testing.T) {
	t.Setenv("KUBECONFIG", "/hosted/kubeconfig")
	for _, front := range []Front{SOCKS5, HTTP} {
		o, status, said := parse(t, front)
		testutil.Requires(t, status == 0 && said == "", "no flags at all: status %d, %s", status, said)
		got := []any{
			o.ServerHost, o.ServerPort, o.ServingAddress, o.ServingPort, o.SecondPort, o.Files.CA, o.Files.Cert, o.Files.Key,
			o.Out.Direct.CloudAPIs, o.Out.Hosted.PreferIPv4, o.Out.SOCKS5, o.Out.HTTPS.HTTPProxy, o.Out.HTTPS.HTTPSProxy, o.Out.HTTPS.NoProxy,
			o.Out.Hosted.Kubeconfig, o.Out.Hosted.GuestDNSService, o.Out.Server.Mode, o.healthAddress, o.credentialsFile,
		}
		want := []any{
			"konnectivity-server-local", uint16(8090), "127.0.0.1", uint16(8090), uint16(0),
			"/etc/konnectivity/proxy-ca/ca.crt", "/etc/konnectivity/proxy-client/tls.crt", "/etc/konnectivity/proxy-client/tls.key",
			false, false, adapters.ResolvePolicy{}, "", "", "", "/hosted/kubeconfig", "openshift-dns/dns-default", link.Auto, "", "",
		}
		testutil.Holds(t, reflect.DeepEqual(got, want), "%s: got %v\nwant %v", front, got, want)
	}
}

// Every flag of either is in both, with its default unless docs/compatibility.md
// says otherwise.
func TestFlagsMatchReplacedPrograms(t *testing.T) {
	for _, front := range []Front{SOCKS5, HTTP} {
		testutil.CheckUpstreamFlags(t, "sidecar", NewCommand(front).Flags(), "sidecar")
	}
}

func TestFlagsAreDocumented(t *testing.T) {
	all := NewCommand(SOCKS5).Flags()
	all.AddFlagSet(NewCommand(HTTP).Flags())
	testutil.CheckDocumentedFlags(t, all, "docs/sidecars.md#Flags", "docs/flags.md#Logging")
}

// The command lines with which HyperShift runs the sidecars.
func TestCommandLinesInUse(t *testing.T) {
	for _, c := range []struct {
		front Front
		args  string
		check func(*Options) bool
	}{
		{HTTP, "run --connect-directly-to-cloud-apis=true", func(o *Options) bool { return o.Out.Direct.CloudAPIs }},
		{HTTP, "run --serving-port 8092 --http-proxy http://p:3128 --https-proxy=http://p:3128 --no-proxy .svc,10.0.0.0/8",
			func(o *Options) bool {
				return o.ServingPort == 8092 && o.Out.HTTPS.HTTPProxy == "http://p:3128" && o.Out.HTTPS.NoProxy == ".svc,10.0.0.0/8"
			}},
		{SOCKS5, "run --resolve-from-guest-cluster-dns=true --resolve-from-management-cluster-dns=true",
			func(o *Options) bool { return o.Out.SOCKS5.GuestDNS && o.Out.SOCKS5.ManagementFallback }},
		{SOCKS5, "run --disable-resolver", func(o *Options) bool { return o.Out.SOCKS5.Disabled }},
		{SOCKS5, "--konnectivity-hostname=k --konnectivity-port=1 --ca-cert-path=a --tls-cert-path=b --tls-key-path=c --prefer-ipv4",
			func(o *Options) bool {
				return o.ServerHost == "k" && o.ServerPort == 1 && o.Files.CA == "a" && o.Files.Cert == "b" && o.Files.Key == "c" && o.Out.Hosted.PreferIPv4
			}},
		{SOCKS5, "--http-serving-port=8090 --direct-suffix=a.example,b.example --direct-suffix=c.example",
			func(o *Options) bool { return o.shared() && len(o.Out.Direct.Suffixes) == 3 }},
		{HTTP, "--socks5-serving-port=8091 --link=off --proxy-ca-cert-path=/a --proxy-ca-cert-path=/b", func(o *Options) bool {
			return o.serves(SOCKS5) && !o.shared() && o.Out.Server.Mode == link.Off && len(o.Out.HTTPS.CACertPaths) == 2
		}},
		// A token takes the place of the usual certificate, and of no other.
		{SOCKS5, "--token-path=/t", func(o *Options) bool { return o.Files.Cert+o.Files.Key == "" && o.TokenFile == "/t" }},
		{HTTP, "--token-path=/t --tls-cert-path=b --tls-key-path=c", func(o *Options) bool { return o.Files.Cert == "b" && o.Files.Key == "c" }},
		{SOCKS5, "-v=6 --log-level=debug", func(*Options) bool { return true }},
		{SOCKS5, "--serving-address=:: --health-address=:8093 --idle-timeout=1h --max-connections=5 --drain-timeout=0", func(o *Options) bool {
			return o.fronts.MaxConns == 5 && o.fronts.Drain == 0
		}},
	} {
		o, status, said := parse(t, c.front, strings.Fields(c.args)...)
		testutil.Holds(t, status == 0 && c.check(o), "%s: status %d, %s", c.args, status, said)
	}
}

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--serving-port=70000":           "--serving-port\" flag: want a port from 0 to 65535",
		"--serving-port=http":            "--serving-port\" flag: want a port from 0 to 65535",
		"--konnectivity-port=0":          "--konnectivity-port: want a port from 1",
		"--konnectivity-hostname=":       "--konnectivity-hostname: want",
		"--konnectivity-hostname=a:8090": "without a port (see --konnectivity-port), got \"a:8090\"",
		"--socks5-credentials-file=":     "--socks5-credentials-file is empty",
		"--peer-trust-domain=":           "--peer-trust-domain is empty",
		"--server-name=10.0.0.1":         "--server-name=10.0.0.1: TLS asks for names",
		"--server-name=a:8090":           "--server-name=\"a:8090\": want a DNS name",
		"--link=maybe":                   "--link\" flag: must be one of auto, off, require",
		"--serving-address=example.com":  "--serving-address: want an IP address",
		"--max-connections=-1":           "--max-connections: want 0 for the default",
		"--idle-timeout=-1s":             "--idle-timeout: want 0",
		"--idle-timeout=soon":            "--idle-timeout",
		"--resume-window=-1s":            "--resume-window=-1s: want a duration from 0 (off) to 10m0s",
		"--resume-window=11m":            "--resume-window=11m0s: want a duration",
		"--max-servers=-1":               "--max-servers: want 0 for all or at least 1, got -1",
		"--link-lanes=0":                 "--link-lanes=0: want a number from 1 (off) to 8",
		"--link-lanes=9":                 "--link-lanes=9: want a number from 1",
		"--drain-timeout=-1s":            "--drain-timeout: want 0",
		"--shutdown-delay=-1s":           "--shutdown-delay: want 0",
		"--dial-timeout=0":               "--dial-timeout: want a positive",
		"--tls-key-path=":                "--tls-cert-path and --tls-key-path: want both",
		"--health-address=8093":          "--health-address: want IP:PORT",
		"--admin-address=host.name:80":   "--admin-address: want IP:PORT",
		"--health-address=host.name:80":  "--health-address: want IP:PORT",
		"--health-address=127.0.0.1:x":   "--health-address: want IP:PORT",
		"--no-such-flag":                 "--no-such-flag",
		"walk":                           "no arguments",
		"run run":                        "no arguments",
		"--prefer-ipv4=perhaps":          "--prefer-ipv4",
		"--log-level=loud":               "--log-level",
		"--http-serving-port=-1":         "--http-serving-port\" flag: want a port",
		"--resolve-from-guest-cluster=1": "unknown flag",
		"--serving-uds-mode=0888":        "--serving-uds-mode\" flag: want permissions in octal",
		"--serving-uds-owner=:":          "--serving-uds-owner\" flag: want USER, USER:GROUP or :GROUP",
		"--serving-uds-owner=no-such":    "--serving-uds-owner\" flag: no user \"no-such\" is known here",
	} {
		_, status, said := parse(t, SOCKS5, strings.Fields(args)...)
		testutil.Holds(t, status == cli.ExitUsage && strings.Contains(said, want) && strings.Count(said, "\n") == 1,
			"%s: status %d, said %q, want %q", args, status, said, want)
	}
}

func TestIneffectiveFlagsAreWarned(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	for _, c := range []struct {
		front Front
		args  string
		want  string // "" for nothing
	}{
		{SOCKS5, "", ""},
		{SOCKS5, "--http-proxy=http://u:hunter2@p:1", "--http-proxy has no effect without --http-serving-port"},
		{SOCKS5, "--http-proxy=http://p:1 --http-serving-port=1", ""},
		{HTTP, "--disable-resolver", "--disable-resolver has no effect without --socks5-serving-port"},
		{HTTP, "--serving-uds-mode=0660", "--serving-uds-mode has no effect without --serving-uds"},
		{HTTP, "--serving-uds-owner=:0", "--serving-uds-owner has no effect without --serving-uds"},
		{HTTP, "--serving-uds=/s --serving-port=0 --answer-tcp-probes", "--answer-tcp-probes has no effect without a port"},
		{HTTP, "--serving-uds=/s --answer-tcp-probes", ""},
		{HTTP, "--traces-ratio=0.5", "--traces-ratio has no effect without --traces-endpoint"},
		{HTTP, "--traces-ratio=0.5 --traces-endpoint=http://c:1", ""},
		{HTTP, "--link=off --resume-window=1m", "--resume-window has no effect without links, and --link is off"},
		{HTTP, "--link=off --link-lanes=2", "--link-lanes has no effect without links"},
		{SOCKS5, "--resolve-from-guest-cluster-dns", "--resolve-from-guest-cluster-dns has no effect without --kubeconfig"},
		{SOCKS5, "--resolve-from-guest-cluster-dns --kubeconfig=/k", ""},
		{SOCKS5, "--resolve-from-management-cluster-dns --kubeconfig=/k", "has no effect without --resolve-from-guest-cluster-dns"},
		{SOCKS5, "--resolve-from-guest-cluster-dns --kubeconfig=/k --disable-resolver", "has no effect without --disable-resolver=false"},
	} {
		o, status, said := parse(t, c.front, strings.Fields(c.args)...)
		testutil.Requires(t, status == 0, "%s: %s", c.args, said)
		var out strings.Builder
		o.warnIneffective(logTo(&out))
		switch got := out.String(); {
		case c.want == "" && got != "":
			t.Errorf("%s: said %s", c.args, got)
		case c.want != "" && (!strings.Contains(got, c.want) || strings.Count(got, "\n") != 1):
			t.Errorf("%s: said %q, want %q", c.args, got, c.want)
		case strings.Contains(got, "hunter2"):
			t.Errorf("a password is in the log: %s", got)
		}
	}
}

func TestHandOff(t *testing.T) {
	h := admission.NewHandOff(tunnel.Addr{Net: "tcp", Text: "x:1"})
	a, b := net.Pipe()
	give := handOver(h)
	go give(tunnel.Wrap(a))
	got := testutil.Must(h.Accept())(t)
	_ = h.Close()
	_ = h.Close()
	testutil.ErrorIs(t, testutil.Err(h.Accept()), net.ErrClosed, "accept from a closed listener")
	give(tunnel.Wrap(b)) // must not block, and must close it
	testutil.Fails(t, testutil.Err(got.Read(make([]byte, 1))), "read of a connection that came too late")
	_ = got.Close()
}
