package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/redirect"
	"konnectivity/internal/cli"
	"konnectivity/internal/files"
	"konnectivity/internal/nameserver"
)

const (
	// defaultTransparentPort is next to the other ports of the suite.
	defaultTransparentPort = 8096

	// defaultUID is the user of the suite's images and manifests.
	defaultUID = 65532
)

// redirectOptions are the flags of `konnectivity redirect`.
type redirectOptions struct {
	port       uint16
	uid        uint32
	except     []string
	resolvConf string
	remove     bool
}

func newRedirect() *cobra.Command {
	o := &redirectOptions{}
	cmd := &cobra.Command{
		Use:   "redirect CIDR...",
		Short: "Send this pod's connections to networks through a sidecar",
		Long: "Redirect has the kernel send every TCP connection to the given networks to the\n" +
			"--transparent-port of a sidecar in the same pod, so that programs which know no proxy\n" +
			"reach them through the tunnel. It needs Linux with nftables, root and CAP_NET_ADMIN,\n" +
			"such as an init container can have. What the sidecar's own user sends goes its usual\n" +
			"way, as do connections to the pod itself and to its nameservers (port 53). Each call\n" +
			"replaces what the last one did. It is for pods with a network of their own: in the\n" +
			"host's network it redirects the whole node.",
		Example: "  konnectivity redirect 10.128.0.0/14 172.30.0.0/16 fd01::/48\n" +
			"  konnectivity redirect --remove",
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(args, cmd.OutOrStdout()) },
	}
	cli.AddFlags(cmd, "Redirect flags", func(f *pflag.FlagSet) {
		f.Uint16Var(&o.port, "transparent-port", defaultTransparentPort, "--transparent-port of the sidecar")
		f.Uint32Var(&o.uid, "uid", defaultUID, "user that the sidecar runs as, and no program whose connections are to be redirected")
		f.StringSliceVar(&o.except, "except", nil, "`CIDR` inside the others that is not redirected; repeatable")
		f.StringVar(&o.resolvConf, "resolv-conf", "/etc/resolv.conf", "file that names the nameservers")
		f.BoolVar(&o.remove, "remove", false, "undo it; networks and other flags are ignored")
	})
	return cmd
}

func (o *redirectOptions) run(args []string, out io.Writer) error {
	if o.remove {
		if err := redirect.Remove(); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out, "No connection is redirected any more") // that it cannot be told changes nothing
		return nil
	}
	plan, err := o.plan(args)
	if err != nil {
		return err
	}
	if err := plan.Apply(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, plan)
	return nil
}

func (o *redirectOptions) plan(args []string) (*redirect.Plan, error) {
	if len(args) == 0 {
		return nil, cli.Usagef("want the networks to redirect, such as 10.128.0.0/14, or --remove")
	}
	if o.port == 0 {
		return nil, cli.Usagef("--transparent-port: want a port from 1 to 65535, got 0")
	}
	p := &redirect.Plan{UID: o.uid, Port: o.port}
	var err error
	if p.To, err = redirect.Networks(args); err != nil {
		return nil, err
	}
	if p.Except, err = redirect.Networks(o.except); err != nil {
		return nil, cli.Usagef("--except: %w", err)
	}
	text, err := files.Read(o.resolvConf, nameserver.MaxFile)
	none := errors.Is(err, fs.ErrNotExist) || o.resolvConf == os.DevNull // the resolver uses loopback
	if err != nil && !none {
		return nil, fmt.Errorf("--resolv-conf: %w", err)
	}
	p.DNS = redirect.Nameservers(text)
	return p, nil
}
