package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/cli"
	"konnectivity/tunnel"
)

// dialOptions are the flags of `konnectivity dial`.
type dialOptions struct {
	tls     via.TLS
	path    string // --via
	timeout time.Duration
	verbose bool
	admin   string
	token   string
}

func newDial() *cobra.Command {
	o := &dialOptions{}
	cmd := &cobra.Command{
		Use:   "dial HOST:PORT",
		Short: "Connect standard input and output to a destination behind the tunnel",
		Long: "Dial connects to HOST:PORT, sends it standard input, and writes what it answers to\n" +
			"standard output. When the input ends, the destination is told so, and its answer still\n" +
			"arrives; only grpc cannot do that. A PATH is\n" + via.Kinds + ".",
		Example: "  echo | konnectivity dial kubernetes.default.svc:443 -v\n" +
			"  ssh -o ProxyCommand='konnectivity dial --via socks5://127.0.0.1:8090 %h:%p' core@10.0.3.7\n" +
			"  konnectivity dial --via link://proxy.example.com:8090 --ca-cert-path pki/ca.crt \\\n" +
			"      --tls-cert-path pki/client.crt --tls-key-path pki/client.key 10.0.0.1:6443",
		Args: cli.OneArg("HOST:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], newStdio(cmd.InOrStdin(), cmd.OutOrStdout()), cmd.ErrOrStderr())
		},
	}
	cli.AddFlags(cmd, "Dial flags", func(f *pflag.FlagSet) {
		f.StringVar(&o.path, "via", "socks5://127.0.0.1:8090", "the `PATH` to take")
		f.DurationVar(&o.timeout, "timeout", tunnel.DefaultDialTimeout, "how long the destination has to answer")
		f.BoolVarP(&o.verbose, "verbose", "v", false, "print to standard error the path, how long each hop takes, and what to do if it fails")
		f.StringVar(&o.admin, "server-admin", "", "with -v, `HOST:PORT` of the server's admin port, or https://HOST:PORT, to show which agent it uses")
		f.StringVar(&o.token, "token-file", "", "file with the token that --server-admin asks for")
	})
	addPathTLS(cmd, &o.tls)
	cli.Choices(cmd, "via", "direct", "socks5://", "http://", "https://", "link://", "grpc:///")
	return cmd
}

// run dials address, and carries bytes between it and near until both directions have
// ended. With --verbose it describes the path on log.
func (o *dialOptions) run(ctx context.Context, address string, near *stdio, log io.Writer) error {
	if _, _, err := tunnel.SplitAddress(address); err != nil {
		return cli.Usagef("%q: %s", address, tunnel.AsDialError("", err).Text())
	}
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %v: want a positive duration", o.timeout)
	}
	if err := checkAdmin("server-admin", o.admin); err != nil {
		return err
	}
	dialer, closeDialer, err := via.Dialer(o.path, o.tls)
	if err != nil {
		return err
	}
	defer closeDialer()
	flow := tunnel.NewFlow("tcp", address)
	far, err := o.dial(ctx, dialer, flow, log)
	if err != nil {
		return err
	}
	start := time.Now()
	err = (&tunnel.Relay{A: tunnel.Wrap(near), B: far, Flow: flow}).Run(ctx)
	if o.verbose {
		if near.midLine { // a terminal shows both outputs
			fmt.Fprintln(log)
		}
		up, down := flow.Sent()
		fmt.Fprintf(log, "ended after %s: sent %s, received %s\n", status.Span(time.Since(start)), status.Bytes(float64(up)), status.Bytes(float64(down)))
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C is the usual way to end it
	}
	return err
}

func (o *dialOptions) dial(ctx context.Context, dialer tunnel.Dialer, flow *tunnel.Flow, log io.Writer) (tunnel.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if !o.verbose {
		return dialer.Dial(dialing, flow)
	}
	trace := &dialTrace{out: log, admin: o.admin, address: flow.Address}
	if via.PassesID(o.path) {
		trace.id = flow.ID
	}
	if o.admin != "" {
		var err error
		if trace.client, err = status.NewClient(status.Login{Token: o.token, TLS: via.TLS{Files: o.tls.Files}}); err != nil {
			return nil, err
		}
		defer trace.client.Close()
	}
	trace.begin(ctx, o.path)
	far, err := dialer.Dial(dialing, flow)
	if err != nil {
		trace.failed(ctx, tunnel.AsDialError(flow.Address, err))
		return nil, err
	}
	trace.connected(ctx, dialer, far)
	return far, nil
}
