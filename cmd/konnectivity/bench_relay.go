package main

import (
	"crypto/tls"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"konnectivity/internal/bench"
	"konnectivity/internal/cli"
	"konnectivity/internal/tlsreload"
)

// newBenchRelay is one process of the relay chain that benchmarks compare the suite with.
// It is hidden, since it has no other use.
func newBenchRelay() *cobra.Command {
	var pki, listen, next string
	cmd := &cobra.Command{
		Use:       "relay front|middle|end",
		Short:     "One process of the plain relay chain that bench compares with",
		Hidden:    true,
		ValidArgs: []string{"front", "middle", "end"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			hop, err := relayHop(args[0], pki, next)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			defer l.Close()
			fmt.Fprintln(cmd.OutOrStdout(), l.Addr())
			if args[0] != "front" {
				source, err := pairOf(pki, "server")
				if err != nil {
					return err
				}
				l = tls.NewListener(l, source.Server())
			}
			return hop.Serve(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVar(&pki, "pki", "", "`FOLDER` that konnectivity certs wrote")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; it is printed")
	cmd.Flags().StringVar(&next, "next", "", "HOST:PORT of the next process of the chain")
	return cmd
}

func relayHop(role, pki, next string) (bench.Hop, error) {
	if role == "end" {
		return bench.Hop{}, nil
	}
	host, _, err := net.SplitHostPort(next)
	if err != nil {
		return bench.Hop{}, cli.Usagef("--next %q: want HOST:PORT", next)
	}
	source, err := pairOf(pki, "client")
	if err != nil {
		return bench.Hop{}, err
	}
	config := source.Client(host)
	config.ClientSessionCache = nil // such chains make a full handshake for each connection and hop
	return bench.Hop{Next: next, Config: config}, nil
}

// pairOf loads a certificate from a folder of `konnectivity certs`.
func pairOf(dir, name string) (*tlsreload.Source, error) {
	return tlsreload.New(tlsreload.FilesIn(dir, name), tlsreload.Options{Name: name})
}
