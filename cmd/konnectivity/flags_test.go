package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

// Each wrong command line is refused. The error is one line that names the mistake and
// shows no password. The command writes nothing.
func TestUsageErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, want := range map[string]string{
		"check nonsense":                                   "nonsense",
		"check a:1 b:2":                                    "accepts at most 1 arg",
		"check -o yaml":                                    "must be one of text, json",
		"check --timeout=0":                                "--timeout",
		"check --konnectivity-port=0":                      "--konnectivity-port",
		"check --konnectivity-hostname=a/b":                "--konnectivity-hostname",
		"check --konnectivity-hostname=a:1":                "--konnectivity-hostname",
		"check --server-admin=x":                           "--server-admin",
		"check --api=a:1 b:2":                              `--api and "b:2" exclude each other`,
		"check --api=x":                                    `--api "x": want HOST:PORT or unix:PATH`,
		"check --api=a:b":                                  `--api "a:b": want HOST:PORT or unix:PATH`,
		"check --api=a:1 --agent-admin=a:b":                "--agent-admin",
		"status a:b":                                       `"a:b": want HOST:PORT`,
		"check --api=a:1 --agent-admin=x":                  "--agent-admin",
		"check --agent-admin=a:1":                          "--agent-admin needs --api",
		"dial":                                             "HOST:PORT",
		"dial a":                                           "\"a\"",
		"dial a:1 b:2":                                     "HOST:PORT",
		"dial a b:1":                                       "HOST:PORT",
		"dial a:1 --via=ftp://x:1":                         "--via",
		"dial a:1 --via=grpc://":                           "--via",
		"dial a:1 --via=http:///":                          "--via",
		"dial a:1 --via=https:///s":                        "--via",
		"dial a:1 --timeout=-1s":                           "--timeout",
		"dial a:1 --server-admin=x":                        "--server-admin",
		"bench --runs=0":                                   "--runs",
		"bench --size=0":                                   "--size",
		"bench --size=17592186044417":                      "--size 17592186044417: want 1048576 at most",
		"bench --streams=0":                                "--streams 0: must be at least 1",
		"bench --duration=-1s":                             "--duration must be positive",
		"bench --rate=-3":                                  "--rate",
		"bench --settle=-1s":                               "--settle",
		"bench --tests=":                                   "--tests=: no test: want some of down,up",
		"bench --tests=down,fly":                           `--tests=down,fly: no test "fly": want some of down,up`,
		"bench --pids=direct":                              "--pids",
		"bench --via=x://y":                                "--via",
		"handover-folder":                                  "want one argument, PATH, and got 0",
		"handover-folder /x --uid=-1":                      "--uid",
		"redirect":                                         "want the networks to redirect",
		"redirect 10.0.0.1/8":                              "did you mean 10.0.0.0/8?",
		"redirect 10.0.0.0/8 --except=10.1.0.0":            "--except: ",
		"redirect 10.0.0.0/8 --transparent-port=0":         "--transparent-port: want a port",
		"redirect 10.0.0.0/8 --transparent-port=-1":        "--transparent-port",
		"redirect 10.0.0.0/8 --transparent-port=70000":     "--transparent-port",
		"redirect 10.0.0.0/8 --uid=root":                   "--uid",
		"redirect 10.0.0.0/8 --uid=-1":                     "--uid",
		"policy chekc /f":                                  `unknown command "chekc" for "konnectivity policy": did you mean check? (see konnectivity policy --help)`,
		"policy -- chekc /f":                               `unknown command "chekc" for "konnectivity policy"`,
		"policy --help=false -- chekc":                     `unknown command "chekc" for "konnectivity policy"`,
		"policy --log-level=debug -- chekc":                "unknown flag: --log-level",
		"tenants -- -x":                                    `unknown command "-x" for "konnectivity tenants"`,
		"-- policy":                                        `unknown command "policy" for "konnectivity"`,
		"tenants delete x":                                 `unknown command "delete" for "konnectivity tenants"`,
		"signer":                                           "--ca-cert and --ca-key are required",
		"signer --ca-cert=a --ca-key=b --signer-name=a/b":  "--signer-name=a/b: want DOMAIN/NAME, and a domain with a dot",
		"signer --ca-cert=a --ca-key=b --signer-name=a.b/": "--signer-name=a.b/",
		"signer --ca-cert=a --ca-key=b --lifetime=59m":     "--lifetime=59m0s: want 1h at least",
		"signer --ca-cert=a --ca-key=b --agent-service-account=A": "--agent-service-account=A",
		"signer --ca-cert=a --ca-key=b --agent-namespace=a.b":     "--agent-namespace=a.b",
		"signer --ca-cert=a --ca-key=b --trust-domain=A":          "--trust-domain=",
		"signer --ca-cert=a --ca-key=b --health-port=0":           "--health-port=0",
		"status x":                                                                    "want HOST:PORT",
		"status -o=yaml":                                                              "must be one of table, json",
		"status --limit=1001":                                                         "--limit 1001: want 0 to 1000",
		"status a:1 --service=b":                                                      "want either addresses or --service",
		"status --interval=1ms":                                                       "--interval 1ms: want at least 200ms",
		"tenants list --sort=size":                                                    "must be one of state, traffic, name",
		"tenants list -o=xml":                                                         "must be one of table, json",
		"tenants list --limit=-1":                                                     "--limit -1",
		"tenants list nowhere":                                                        "want HOST:PORT",
		"tenants check x -o xml":                                                      "--output",
		"tenants check x --server-admin=x":                                            "--server-admin",
		"tenants make":                                                                "NAME",
		"tenants make Cluster_A --server-name=a.example":                              "is no name for a tenant",
		"tenants make .. --server-name=a.example":                                     "is no name for a tenant",
		"tenants make a":                                                              "--server-name: the certificate of the server needs a name",
		"tenants make a --server-name=10.0.0.1":                                       "--server-name: \"10.0.0.1\" is an address",
		"tenants make a --server-name=*.example":                                      "--server-name: \"*.example\": wildcards",
		"tenants make a --server-name=a.example --agents-at=x":                        "--agents-at=x: want HOST:PORT",
		"tenants make a --server-name=a.example --agents-at=x:99999":                  "--agents-at=x:99999: want HOST:PORT",
		"tenants make a --server-name=a.example --clients-at=:80":                     "--clients-at=:80: want HOST:PORT",
		"tenants make a --server-name=a.example --server-namespace=A":                 "--server-namespace=A is not",
		"tenants make a --server-name=a.example --agent-san=a:1":                      "--agent-san",
		"tenants make a --server-name=a.example --lifetime=-1h":                       "must be positive",
		"tenants make a --server-name=a.example --trust-domain=A/b":                   "--trust-domain",
		"certs pki --tenant= --server-name=a.example":                                 "is no name for a tenant",
		"certs pki --server-name=a.example":                                           "--server-name needs --tenant",
		"certs pki --tenant=a --server-san=a.example":                                 "server-san",
		"tenants make a --server-name=a.example --by-identity":                        "--by-identity needs --from",
		"tenants make a --server-name=a.example --agent-port=70000":                   "--agent-port: 70000: want a port",
		"tenants make a --server-name=a.example --agent-port=9000 --client-port=9000": "--client-port: 9000 is agentPort, too",
		"tenants make a --server-name=a.example --client-socket=x.socket":             `--client-socket: "x.socket": want the whole path`,
		"certs":                                  "arg",
		"certs pki more":                         "arg",
		"certs pki --lifetime=-1h":               "positive",
		"certs pki --lifetime=year":              "--lifetime",
		"certs pki --server-san=https://x":       "--server-san: \"https://x\"",
		"certs pki --cluster-san=a/b":            "--cluster-san",
		"certs pki --agent-san=x:1":              "--agent-san",
		"certs pki --namespace=../x":             "--namespace",
		"certs pki --namespace=Control-Plane":    "--namespace=Control-Plane is not a Kubernetes namespace",
		"certs pki --trust-domain=Prod/x":        "--trust-domain",
		"certs pki --from=pki --ca-lifetime=1h":  "ca-lifetime",
		"dial a:1 --via=socks5://u:hunter2@h:1":  "without user and password",
		"dial a:1 --via=http://u:hunter2@h":      "without user and password",
		"dial a:1 --via=http://u:hunter2%zz@h:1": "without user and password",
		"dial a:1 --via=socks5:u:hunter2@h:1":    "without user and password",
		"dial a:1 --via=grpc://u:hunter2@/s":     "without user and password",
	} {
		status, _, stderr := konnectivity(strings.Fields(args)...)
		testutil.Holds(t, status == cli.ExitUsage && strings.Contains(stderr, want) && strings.Count(stderr, "\n") == 1 &&
			!strings.Contains(stderr, "hunter2"), "%s: status %d, %q, want %q", args, status, stderr, want)
	}
	testutil.Equal(t, len(testutil.Must(os.ReadDir("."))(t)), 0, "files that were written")
}

func TestFlagsAreDocumented(t *testing.T) {
	shared := map[string][]string{
		"konnectivity check":        {"docs/sidecars.md#Flags"},
		"konnectivity signer":       {"docs/flags.md#Logging"},
		"konnectivity tenants make": {"docs/flags.md#konnectivity certs"},
	}
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.HasLocalFlags() && cmd.HasParent() { // the root has those of cobra alone
			testutil.CheckDocumentedFlags(t, cmd.Flags(), "docs/flags.md#"+path, shared[path]...)
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	root := newRoot()
	root.SetOut(io.Discard)
	_ = cli.Run(root, []string{"version"}, io.Discard, nil) // adds the commands that all programs have
	check(root)
}
