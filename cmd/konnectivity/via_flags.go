package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
	"konnectivity/internal/tlsreload"
)

// viaFlags are the files that https:// and link:// need, named as on the
// sidecars.
type viaFlags struct{ files tlsreload.Files }

func (v *viaFlags) register(cmd *cobra.Command) {
	cli.AddFlags(cmd, "TLS flags, for https:// and link://", func(f *pflag.FlagSet) {
		f.StringVar(&v.files.CA, "ca-cert-path", "", "CA of the server's certificate")
		f.StringVar(&v.files.Cert, "tls-cert-path", "", "client certificate to show the server")
		f.StringVar(&v.files.Key, "tls-key-path", "", "key of the client certificate")
	})
}
