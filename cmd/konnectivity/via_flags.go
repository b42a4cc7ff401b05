package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/cli"
)

// viaFlags are what https:// and link:// need, named as on the
// sidecars.
type viaFlags struct{ tls via.TLS }

func (v *viaFlags) register(cmd *cobra.Command) {
	cli.AddFlags(cmd, "TLS flags, for https:// and link://", func(f *pflag.FlagSet) {
		f.StringVar(&v.tls.Files.CA, "ca-cert-path", "", "CA of the server's certificate")
		f.StringVar(&v.tls.Files.Cert, "tls-cert-path", "", "client certificate to show the server")
		f.StringVar(&v.tls.Files.Key, "tls-key-path", "", "key of the client certificate")
		f.StringVar(&v.tls.ServerName, "server-name", "", "name to ask the server for in TLS (SNI), which its certificate must have (default: its host)")
	})
}
