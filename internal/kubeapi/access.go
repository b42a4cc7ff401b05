package kubeapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// apiSilence is how long an API may be silent before it is pinged, and
	// apiAnswer how long it has to answer. They are client-go's.
	apiSilence = 30 * time.Second
	apiAnswer  = 15 * time.Second

	dialTime = 10 * time.Second // to connect, and for TLS
	idleTime = 90 * time.Second // until a connection that nobody uses is closed
)

// Access is how to reach an API, as content: nothing is left to be opened or
// run.
type Access struct {
	Server     string // https://HOST:PORT
	ServerName string // that its certificate must have; "": the host's
	CA         []byte // PEM; nil: the system's CAs
	Insecure   bool   // its certificate is not checked

	Token              string
	Username, Password string
	Cert, Key          []byte // PEM
}

// Config is for a client of that API alone: what it has open goes with it, and
// redirects are refused, since they would lead elsewhere with its credentials.
func (a Access) Config(contentType string) (*rest.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.ServerName, InsecureSkipVerify: a.Insecure}
	if len(a.CA) > 0 {
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(a.CA) {
			return nil, errors.New("there is no PEM certificate among the CAs")
		}
	}
	if len(a.Cert) > 0 {
		pair, err := tls.X509KeyPair(a.Cert, a.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	config := &rest.Config{
		Host: a.Server, BearerToken: a.Token, Username: a.Username, Password: a.Password, QPS: -1,
		Transport: straight{&http.Transport{
			TLSClientConfig: secure, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTime,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTime, ResponseHeaderTimeout: dialTime + apiSilence,
			HTTP2: &http.HTTP2Config{SendPingTimeout: apiSilence, PingTimeout: apiAnswer},
		}},
	}
	config.ContentType = contentType
	return config, nil
}

// straight refuses redirects.
type straight struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s straight) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the API answered with a redirect (%d), and none is followed", resp.StatusCode)
	}
	return resp, err
}
