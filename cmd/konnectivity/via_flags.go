package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/cli"
)

// addPathTLS defines the flags of https:// and link:// paths, with the sidecars'
// names.
func addPathTLS(cmd *cobra.Command, tls *via.TLS) {
	cli.AddFlags(cmd, "TLS flags, for https:// and link://", func(f *pflag.FlagSet) {
		f.StringVar(&tls.Files.CA, "ca-cert-path", "", "CA of the server's certificate")
		f.StringVar(&tls.Files.Cert, "tls-cert-path", "", "client certificate to show the server")
		f.StringVar(&tls.Files.Key, "tls-key-path", "", "key of the client certificate")
		f.StringVar(&tls.ServerName, "server-name", "", "name to ask the server for in TLS (SNI), which its certificate must have (default: its host)")
	})
}
