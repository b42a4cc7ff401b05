package main

import (
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/cli"
)

// addLogin defines the flags of a client of admin ports. Those for TLS have the
// sidecars' names.
func addLogin(f *pflag.FlagSet, l *status.Login) {
	f.StringVar(&l.Token, "token-file", "", "file with the token that a server with --admin-token-file asks for; a tenant's reader-token shows that tenant")
	f.StringVar(&l.Files.CA, "ca-cert-path", "", "CA of the certificate of a server that is asked as https://HOST:PORT (default: the system's CAs)")
	f.StringVar(&l.Files.Cert, "tls-cert-path", "", "client certificate to show it: the operator's, or a tenant's")
	f.StringVar(&l.Files.Key, "tls-key-path", "", "key of the client certificate")
	f.StringVar(&l.ServerName, "server-name", "", "name that its certificate must have (default: its host)")
}

// checkAdmin refuses an admin port that is not an address; "" is accepted.
func checkAdmin(flag, address string) error {
	if address != "" && !isAdmin(address) {
		return cli.Usagef("--%s %q: want HOST:PORT or https://HOST:PORT", flag, address)
	}
	return nil
}

// isAdmin reports whether address has the form of an admin port's.
func isAdmin(address string) bool {
	return isAddress(strings.TrimPrefix(address, status.Secure))
}

// isAddress reports whether address is HOST:PORT, of which HOST may be empty.
func isAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	_, wrong := strconv.ParseUint(port, 10, 16)
	return err == nil && wrong == nil
}

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
