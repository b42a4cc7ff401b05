// Package auth decides which agents a server accepts, and which destinations
// they may claim. The listener does TLS itself (a certificate that chains to
// the cluster CA); this package comes after the handshake.
//
// A Gate owns nothing; its Tokens own a cache and reviews under way. The server
// has a Gate for each cluster (server/cluster.go).
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/server/registry"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Peer is an agent that asks to be accepted, as it introduced itself.
type Peer struct {
	ID          string
	Identifiers string // a URL query
	Token       string // a secret; "" where none was sent
	TLS         *tls.ConnectionState
	Remote      net.Addr // its address; nil if unknown
}

// CertOf returns a peer's certificate; nil: it has shown none.
func CertOf(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// CertDigest stands for who a peer is by its certificate: the subject and the names
// in it, which stay the same in a renewal while the key changes. "" means no
// certificate.
func CertDigest(state *tls.ConnectionState) string {
	cert := CertOf(state)
	if cert == nil {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%x %q %q %q %q", cert.RawSubject, cert.DNSNames, cert.IPAddresses, cert.URIs, cert.EmailAddresses)
	return string(h.Sum(nil))
}

// Who returns who an agent that was admitted has proved to be.
func (g *Gate) Who(state *tls.ConnectionState) tunnel.Identity {
	var names []string
	if cert := CertOf(state); cert != nil {
		names = tenant.IdentityOf(cert).Names()
	}
	if g.Tokens != nil {
		names = append(names, g.Tokens.cfg.Accounts[0].Identity())
	}
	return tunnel.NewIdentity(names...)
}

// Refusal says why an agent was not accepted. Its text is sent to the agent, so
// it contains no secret.
type Refusal struct {
	Code   codes.Code // InvalidArgument, Unauthenticated, PermissionDenied or Unavailable
	Reason string     // a sentence
	Err    error      // the cause, for logs; may be nil
}

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// Label returns the refusal as a label value for metrics.
func (r *Refusal) Label() string {
	switch r.Code {
	case codes.InvalidArgument:
		return "invalid"
	case codes.Unauthenticated:
		return "unauthenticated"
	case codes.PermissionDenied:
		return "denied"
	default:
		return "unavailable"
	}
}

// GRPCStatus gives gRPC the status.
func (r *Refusal) GRPCStatus() *status.Status { return status.New(r.Code, r.Reason) }

func refuse(code codes.Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// Gate admits agents. Its fields must not change while it is in use; it may be
// used by any number of goroutines.
type Gate struct {
	Tokens *Tokens // of one account; nil: no token is required
	Claims *Claims // nil: agents may claim any identifier
	OwnIDs bool    // an agent's id must be a name of its certificate
}

// Admit returns the agent's identifiers, or a *Refusal. It blocks while a token
// is reviewed, within ctx and the reviewer's own bound.
func (g *Gate) Admit(ctx context.Context, p Peer) (registry.Identifiers, error) {
	if err := CheckID(p.ID); err != nil {
		return registry.Identifiers{}, err
	}
	if g.OwnIDs {
		if err := checkOwnID(p.TLS, p.ID); err != nil {
			return registry.Identifiers{}, err
		}
	}
	ids, err := registry.ParseIdentifiers(p.Identifiers)
	if err != nil {
		return registry.Identifiers{}, &Refusal{Code: codes.InvalidArgument, Reason: err.Error()}
	}
	if g.Tokens != nil {
		if _, err := g.Tokens.Review(ctx, p.Token, p.Remote); err != nil {
			return registry.Identifiers{}, err
		}
	}
	if g.Claims != nil {
		if err := g.Claims.check(p.TLS, ids); err != nil {
			return registry.Identifiers{}, err
		}
	}
	return ids, nil
}

// checkOwnID refuses, as a *Refusal, an id that is no name of the certificate: neither its
// common name nor one of its DNS names or URIs.
func checkOwnID(state *tls.ConnectionState, id string) error {
	if cert := CertOf(state); cert != nil {
		is := func(uri *url.URL) bool { return uri.String() == id }
		if cert.Subject.CommonName == id || slices.Contains(cert.DNSNames, id) || slices.ContainsFunc(cert.URIs, is) {
			return nil
		}
	}
	return refuse(codes.PermissionDenied, "the agent may not have the id %.200q, which is no name of its certificate: set --agent-id to one that is", id)
}

// CheckID refuses ids that would cause trouble in logs and on status pages. The error is a
// *Refusal.
func CheckID(id string) error {
	switch {
	case id == "":
		return refuse(codes.InvalidArgument, "the agent sent no id: set --agent-id")
	case len(id) > link.MaxID:
		return refuse(codes.InvalidArgument, "the agent's id has %d bytes: at most %d are accepted", len(id), link.MaxID)
	case !utf8.ValidString(id), strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }):
		return refuse(codes.InvalidArgument, "the agent's id has unprintable characters")
	}
	return nil
}
