package link

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

func TestNoProtocol(t *testing.T) {
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"server"}, Server: true}))(t)
	a, b := net.Pipe()
	defer a.Close()
	served := testutil.Later(func() error {
		defer b.Close()
		return tls.Server(b, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{"h2"}}).Handshake()
	})
	err := tls.Client(a, &tls.Config{RootCAs: ca.Pool(), ServerName: "server", NextProtos: []string{ALPN}}).Handshake()
	server := <-served
	testutil.Holds(t, NoProtocol(err) && server != nil, "a server without the link: %v; there: %v", err, server)
	for name, err := range map[string]error{
		"another alert":  &net.OpError{Op: "remote error", Err: tls.AlertError(42)},
		"another origin": &net.OpError{Op: "local error", Err: noApplicationProtocol},
		"another error":  errors.New("x"),
		"none":           nil,
	} {
		testutil.Equal(t, NoProtocol(err), false, "%s counts: %v", name, err)
	}
}
