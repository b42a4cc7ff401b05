package kubeapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/transport"

	"konnectivity/internal/tlsreload"
)

const (
	// apiSilence is how long an API may be silent before it is pinged, and
	// apiAnswer how long it has to answer. They are client-go's.
	apiSilence = 30 * time.Second
	apiAnswer  = 15 * time.Second

	dialTime = 10 * time.Second // to connect, and for TLS
	idleTime = 90 * time.Second // until an idle connection is closed

	// maxAnswer and maxHeader bound an answer: a review, or the keys of tokens. Those
	// of kube-apiserver have a few KiB. maxUnread bounds what all that are under way
	// have unread on a connection.
	maxAnswer = 64 << 10
	maxHeader = 32 << 10
	maxUnread = 1 << 20

	// maxConns bounds the connections at once to an API without HTTP/2.
	maxConns = 8
)

// Access is how to reach an API, as content: nothing is left to be opened or
// run. Cluster.Access makes one of a kubeconfig.
type Access struct {
	Server     string // https://HOST:PORT
	ServerName string // that its certificate must have; "": the host's
	CA         []byte // PEM; nil: the system's CAs
	Insecure   bool   // its certificate is not checked

	Token              string
	Username, Password string
	Cert, Key          []byte // PEM
}

// Config makes a client of that API alone, with its own connections. Redirects
// are refused, since they would lead elsewhere with its credentials. The API may be
// hostile: answers are bounded.
func (a Access) Config() (*Config, error) {
	secure, err := a.TLS()
	if err != nil {
		return nil, err
	}
	return &Config{URL: a.Server, Transport: transport.Config{
		BearerToken: a.Token, Username: a.Username, Password: a.Password,
		Transport: bounded{&http.Transport{
			TLSClientConfig: secure, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTime,
			MaxIdleConnsPerHost: 1, MaxConnsPerHost: maxConns, IdleConnTimeout: idleTime,
			ResponseHeaderTimeout: dialTime + apiSilence, MaxResponseHeaderBytes: maxHeader,
			HTTP2: &http.HTTP2Config{
				SendPingTimeout: apiSilence, PingTimeout: apiAnswer,
				MaxReceiveBufferPerStream: maxAnswer, MaxReceiveBufferPerConnection: maxUnread,
			},
		}},
	}}, nil
}

// TLS is the configuration of connections to the API, which may be changed.
func (a Access) TLS() (*tls.Config, error) {
	secure := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: a.ServerName, InsecureSkipVerify: a.Insecure,
		VerifyConnection: func(c tls.ConnectionState) error { return tlsreload.CheckWeight(c.PeerCertificates) },
	}
	if len(a.CA) > 0 {
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(a.CA) {
			return nil, errors.New("certificate-authority holds no certificate")
		}
	}
	if len(a.Cert)+len(a.Key) > 0 {
		pair, err := tls.X509KeyPair(a.Cert, a.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate and key: %w", err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	return secure, nil
}

// bounded refuses redirects, and answers without end.
type bounded struct{ http.RoundTripper }

// WrappedRoundTripper implements net.RoundTripperWrapper of k8s.io/apimachinery.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the API answered with a redirect (%d), and none is followed", resp.StatusCode)
	}
	resp.Body = &answer{resp.Body, maxAnswer, maxAnswer}
	return resp, nil
}

// answer is a body with a bound: reading more than left bytes fails. They count
// decompressed.
type answer struct {
	io.ReadCloser
	left, most int
}

var errLong = errors.New("the API's answer is too long")

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p[:min(len(p), a.left+1)])
	if a.left -= n; a.left < 0 {
		return 0, fmt.Errorf("%w: more than %d bytes", errLong, a.most)
	}
	return n, err
}
