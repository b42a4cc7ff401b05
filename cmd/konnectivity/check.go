package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/internal/sidecar"
	"konnectivity/cmd/konnectivity/internal/diagnose"
	"konnectivity/internal/cli"
	"konnectivity/tunnel"
)

// checkOptions are the flags of `konnectivity check`: those of a sidecar, so that its
// command line can be pasted, and a few more.
type checkOptions struct {
	what   diagnose.Subject
	api    diagnose.API // checked instead, if it has an address
	asJSON bool
}

// stepTimeout leaves a server time to report that its own timeout has passed.
const stepTimeout = tunnel.DefaultDialTimeout + 2*time.Second

func newCheck() *cobra.Command {
	o := &checkOptions{what: diagnose.Subject{Sidecar: sidecar.Options{Program: "konnectivity", Front: sidecar.SOCKS5}}}
	cmd := &cobra.Command{
		Use:   "check [HOST:PORT]",
		Short: "Find out which step of the path through the tunnel fails, and why",
		Long: "Check takes the flags of a sidecar, follows the same path as that sidecar, and says of\n" +
			"each step whether it works, or why not and what to do: files, certificates, the server\n" +
			"and its protocol, its agents, names, and with HOST:PORT a connection there, also through\n" +
			"sidecars that run here. With --api it follows the path of a node's programs to their API\n" +
			"server instead, and needs no other flag. It changes nothing. The exit status is 1 if a\n" +
			"step failed; warnings do not count.",
		Example: "  konnectivity check --konnectivity-hostname=proxy.example.com --konnectivity-port=8090 \\\n" +
			"      --ca-cert-path=ca.crt --tls-cert-path=client.crt --tls-key-path=client.key kubernetes.default.svc:443",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), strings.Join(args, ""))
		},
	}
	cli.AddFlags(cmd, "Check flags", func(f *pflag.FlagSet) {
		f.StringVar(&o.what.ServerAdmin, "server-admin", "", "`HOST:PORT` of the server's admin port, or https://HOST:PORT, to check its agents")
		f.StringVar(&o.what.TokenFile, "token-file", "", "file with the token that --server-admin asks for")
		f.Uint16Var(&o.what.SOCKS5Port, "socks5-serving-port", 0, "second port of a konnectivity-https-proxy, to try it too")
		f.StringVar(&o.api.Address, "api", "", "check how this node's programs reach their API server at its agent's --api-bind, `HOST:PORT` or unix:PATH, instead")
		f.StringVar(&o.api.AgentAdmin, "agent-admin", "", "with --api, `HOST:PORT` of the agent's admin port, to say why a step fails")
		cli.Output(f, &o.asJSON, "text")
		f.DurationVar(&o.what.Timeout, "timeout", stepTimeout, "how long each step may take; the default is longer than a server's own limit, so that its answer arrives")
	})
	o.what.Sidecar.AddFlags(cmd)
	cmd.Flags().Lookup("serving-port").Usage = "port of a sidecar of either kind that runs here, to try it too; 0: none"
	o.what.Given = cmd.Flags().Changed
	return cmd
}

// errChecksFailed makes the exit status 1; the findings say why.
var errChecksFailed = errors.New("not every step works")

func (o *checkOptions) run(ctx context.Context, out io.Writer, target string) error {
	if err := o.validate(target); err != nil {
		return err
	}
	if o.api.Address != "" {
		o.api.Timeout = o.what.Timeout
		return printFindings(out, o.api.Run(ctx), o.asJSON)
	}
	o.what.Target = target
	return printFindings(out, diagnose.Run(ctx, &o.what), o.asJSON)
}

func (o *checkOptions) validate(target string) error {
	if o.what.Timeout <= 0 {
		return cli.Usagef("--timeout %v: want a positive duration", o.what.Timeout)
	}
	if o.api.Address != "" {
		if target != "" {
			return cli.Usagef("--api and %q exclude each other", target)
		}
		if !strings.HasPrefix(o.api.Address, "unix:") && !isAddress(o.api.Address) {
			return cli.Usagef("--api %q: want HOST:PORT or unix:PATH, as in the agent's --api-bind", o.api.Address)
		}
		return checkAdmin("agent-admin", o.api.AgentAdmin)
	}
	if o.api.AgentAdmin != "" {
		return cli.Usagef("--agent-admin needs --api")
	}
	if err := o.what.Sidecar.CheckServer(); err != nil {
		return err
	}
	if target != "" {
		if _, _, err := tunnel.SplitAddress(target); err != nil {
			return cli.Usagef("%q: %s", target, tunnel.AsDialError("", err).Text())
		}
	}
	return checkAdmin("server-admin", o.what.ServerAdmin)
}
