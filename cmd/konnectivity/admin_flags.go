package main

import (
	"net"
	"strings"

	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

// addLogin defines what admin ports may want of whoever asks them. The flags for
// TLS are named as on the sidecars.
func addLogin(f *pflag.FlagSet, l *status.Login) {
	f.StringVar(&l.Token, "token-file", "", "file with the token that a server with --admin-token-file asks for; a tenant's reader-token shows that tenant")
	f.StringVar(&l.Files.CA, "ca-cert-path", "", "CA of the certificate of a server that is asked as https://HOST:PORT (default: the system's CAs)")
	f.StringVar(&l.Files.Cert, "tls-cert-path", "", "client certificate to show it: the operator's, or a tenant's")
	f.StringVar(&l.Files.Key, "tls-key-path", "", "key of the client certificate")
	f.StringVar(&l.ServerName, "server-name", "", "name that its certificate must have (default: its host)")
}

// checkAdmin refuses a --server-admin that is no address; "" is none.
func checkAdmin(address string) error {
	if address != "" && !isAdmin(address) {
		return cli.Usagef("--server-admin %q: want HOST:PORT or https://HOST:PORT", address)
	}
	return nil
}

// isAdmin says whether an address is that of an admin port.
func isAdmin(address string) bool {
	_, _, err := net.SplitHostPort(strings.TrimPrefix(address, status.Secure))
	return err == nil
}
