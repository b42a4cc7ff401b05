package main

import (
	"crypto/tls"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"konnectivity/internal/benchchain"
	"konnectivity/internal/cli"
	"konnectivity/internal/tlsreload"
)

// newBenchRelay is one process of the relay chain that stands beside ours in
// benchmarks. It is hidden: nobody should run it for anything else.
func newBenchRelay() *cobra.Command {
	var via viaFlags
	var listen, next string
	cmd := &cobra.Command{
		Use:       "relay front|middle|end",
		Short:     "One process of the plain relay chain that bench compares with",
		Hidden:    true,
		ValidArgs: []string{"front", "middle", "end"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := tlsreload.New(via.files, tlsreload.Options{Name: "relay"})
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), l.Addr())
			if args[0] != "front" {
				l = tls.NewListener(l, source.Server())
			}
			hop := benchchain.End()
			if args[0] != "end" {
				host, _, err := net.SplitHostPort(next)
				if err != nil {
					return cli.Usagef("--next %q: want HOST:PORT", next)
				}
				hops := map[string]func(string, *tls.Config) benchchain.Hop{"front": benchchain.Front, "middle": benchchain.Middle}
				hop = hops[args[0]](next, source.Client(host))
			}
			return hop.Serve(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; it is printed")
	cmd.Flags().StringVar(&next, "next", "", "the next process of the chain")
	via.register(cmd)
	return cmd
}
