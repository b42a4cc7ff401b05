package observe_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"konnectivity/internal/testutil"
)

// serveTLS starts ServeTLS, which asks for a certificate and takes any, or none. ask
// gets a page by a connection of its own.
func serveTLS(t *testing.T, own tls.Certificate) (at string, ask func(certs ...tls.Certificate) error) {
	t.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"http/1.1"}}
	l, _ := serve(t, t.Context(), config, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	return l.Addr().String(), func(certs ...tls.Certificate) error {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}
		r, err := (&http.Client{Transport: transport, Timeout: testutil.Patience}).Get("https://" + l.Addr().String())
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		testutil.Holds(t, string(body) == "ok" && err == nil, "%q, %v", body, err)
		return nil
	}
}

// anyPair is an arbitrary certificate with its key.
func anyPair() tls.Certificate {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return server.TLS.Certificates[0]
}

// Over TLS as well, connections without a request give way to those with one.
func TestIncompleteHandshakesGiveWay(t *testing.T) {
	at, ask := serveTLS(t, anyPair())
	for i := range 300 {
		c := testutil.Must(net.Dial("tcp", at))(t)
		defer c.Close()
		_, _ = io.WriteString(c, "\x16\x03\x01\x02"[:i%5]) // the beginning of a handshake
	}
	testutil.NoError(t, ask())
}

// A client with too many certificates is cut off before they are parsed.
func TestLongCertificateChainIsRefused(t *testing.T) {
	pair := anyPair()
	_, ask := serveTLS(t, pair)
	testutil.NoError(t, ask(pair))
	long := pair
	for n := 0; n < 64<<10; n += len(pair.Certificate[0]) {
		long.Certificate = append(long.Certificate, pair.Certificate[0])
	}
	testutil.Fails(t, ask(long), "64 KiB of certificates are taken")
}
