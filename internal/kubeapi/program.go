package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

const (
	// programTime bounds a run of a program, which may ask a cloud's API.
	programTime = time.Minute

	credentialKind = "ExecCredential"
	execExtension  = "client.authentication.k8s.io/exec" // of a Cluster: what its program is to know
)

// Program is one that a kubeconfig has run for credentials, by
// https://kubernetes.io/docs/reference/config-api/client-authentication.v1/.
type Program struct {
	APIVersion string   `json:"apiVersion"`
	Command    string   `json:"command"`
	Args       []string `json:"args"`
	Env        []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	InstallHint        string `json:"installHint"`
	InteractiveMode    string `json:"interactiveMode"`
	ProvideClusterInfo bool   `json:"provideClusterInfo"`
}

// credential is what a program is asked for, and what it prints.
type credential struct {
	Kind       string         `json:"kind"`
	APIVersion string         `json:"apiVersion"`
	Spec       credentialSpec `json:"spec"`
	Status     struct {
		Expires *time.Time `json:"expirationTimestamp"`
		Token   string     `json:"token"`
		Cert    string     `json:"clientCertificateData"`
		Key     string     `json:"clientKeyData"`
	} `json:"status,omitzero"`
}

type credentialSpec struct {
	Cluster     *credentialCluster `json:"cluster,omitempty"`
	Interactive bool               `json:"interactive"`
}

// credentialCluster is a Cluster without names of files, and with what its extension has.
type credentialCluster struct {
	Cluster
	Extensions any `json:"extensions,omitempty"` // hides the Cluster's
	Config     any `json:"config,omitempty"`
}

// source has the credentials that a program gave, and runs it for new ones when they expire,
// or when the API refuses them. Its methods may be called from any goroutine, and block while
// the program runs.
type source struct {
	program Program
	cluster Cluster
	conns   *connrotation.ConnectionTracker // to the API

	mu   sync.Mutex
	last credential       // without a Kind: none yet
	cert *tls.Certificate // of last; nil: none
}

// use has a transport use credentials from the program.
func (s *source) use(c *transport.Config) {
	c.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: func() (*tls.Certificate, error) {
		_, cert, _, err := s.get(context.Background())
		return cert, err
	}}
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: dialTime}).DialContext)
	c.DialHolder, s.conns = &transport.DialHolder{Dial: dialer.DialContext}, dialer.ConnectionTracker
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return &sourced{next, s} })
}

// get returns the credentials, and whether they are new.
func (s *source) get(ctx context.Context) (token string, cert *tls.Certificate, renewed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if expires := s.last.Status.Expires; s.last.Kind == "" || expires != nil && !time.Now().Before(*expires) {
		if err := s.run(ctx); err != nil {
			return "", nil, false, err
		}
		renewed = true
	}
	return s.last.Status.Token, s.cert, renewed, nil
}

// refused forgets credentials that the API has refused.
func (s *source) refused(token string, cert *tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.Status.Token == token && s.cert == cert {
		s.last.Status.Expires = new(time.Time) // long ago
	}
}

func (s *source) run(ctx context.Context) error {
	p := s.program
	if p.InteractiveMode == "Always" {
		return fmt.Errorf("the program %s for credentials wants a terminal, and there is none", p.Command)
	}
	asked := credential{Kind: credentialKind, APIVersion: p.APIVersion}
	if p.ProvideClusterInfo {
		asked.Spec.Cluster = &credentialCluster{Cluster: s.cluster}
		for _, e := range s.cluster.Extensions {
			if e.Name == execExtension {
				asked.Spec.Cluster.Config = e.Extension
			}
		}
	}
	info, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Command, p.Args...)
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) && p.InstallHint != "" {
		return fmt.Errorf("the program %s for credentials: %w; %.1000s", p.Command, err, p.InstallHint)
	}
	if err != nil {
		return fmt.Errorf("the program %s for credentials: %w: %.1000s", p.Command, err, wrong.Bytes())
	}
	return s.take(out)
}

// take takes in what the program has printed, which no error repeats: it is secret.
func (s *source) take(out []byte) error {
	var got credential
	var cert *tls.Certificate
	err := json.Unmarshal(out, &got)
	switch {
	case err != nil, got.Kind != credentialKind, got.APIVersion != s.program.APIVersion:
		return fmt.Errorf("the program %s for credentials printed no %s of %s", s.program.Command, credentialKind, s.program.APIVersion)
	case got.Status.Cert != "":
		pair, err := tls.X509KeyPair([]byte(got.Status.Cert), []byte(got.Status.Key))
		if err != nil {
			return fmt.Errorf("the program %s for credentials printed a certificate that cannot be used: %w", s.program.Command, err)
		}
		cert = &pair
	case got.Status.Token == "":
		return fmt.Errorf("the program %s for credentials printed neither a token nor a certificate", s.program.Command)
	}
	// The API knows a connection by the certificate that it began with.
	other := s.last.Kind != "" && s.last.Status.Cert != got.Status.Cert
	s.last, s.cert = got, cert
	if other {
		s.conns.CloseAll()
	}
	return nil
}

// sourced sends the token of a source.
type sourced struct {
	http.RoundTripper
	source *source
}

// WrappedRoundTripper implements net.RoundTripperWrapper of k8s.io/apimachinery.
func (s *sourced) WrappedRoundTripper() http.RoundTripper { return s.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s *sourced) RoundTrip(req *http.Request) (*http.Response, error) {
	token, cert, renewed, err := s.source.get(req.Context())
	if err != nil {
		return nil, err
	}
	if renewed && cert != nil { // or a connection is chosen that take has closed
		utilnet.CloseIdleConnectionsFor(s.RoundTripper)
	}
	if token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		s.source.refused(token, cert)
	}
	return resp, err
}
