package tenant

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"konnectivity/internal/tlsreload"
)

const (
	// maxCandidates bounds whose CAs are tried for one certificate. One is usual,
	// two where a CA is cross-signed.
	maxCandidates = 4

	// maxChain bounds how many certificates a peer may show to be found by them.
	maxChain = 8
)

// errNobodys says that no tenant's CA has issued a certificate.
var errNobodys = errors.New("no tenant that is told by certificate has a CA that issued it, or it has none of the identities that the tenant lists")

// Issuers find a tenant by the CA of a certificate, on one side of the server; nil
// where no tenant is recognised by certificate. They do not change, and may be used by any
// number of goroutines.
//
// Thousands of CAs may have the same name, and thousands of tenants the same CA, so a
// certificate is tried against those alone that it names by key, and of whose
// identities it has one.
type Issuers struct {
	of func(*Spec) *CAs
	by map[issuer][]*Spec
}

// issuer is how a certificate names its CA.
type issuer struct {
	name string // as in ASN.1
	key  string // its identifier; "": none is told
	any  bool   // by name alone

	identity string // that it has besides; "": whatever it has
}

// agentsOf and clientsOf return the CAs that identify a tenant's peers; nil: none does.
// readersBy returns the CAs of its readers, which ask for no server name.
func agentsOf(t *Spec) *CAs  { return t.ifTold(t.Agents) }
func clientsOf(t *Spec) *CAs { return t.ifTold(t.Clients) }
func readersBy(t *Spec) *CAs { return t.Clients }

func (t *Spec) ifTold(by *CAs) *CAs {
	if !t.ByCertificate {
		return nil
	}
	return by
}

// newIssuers indexes the tenants that have such CAs; nil: none has.
func newIssuers(tenants map[string]*Spec, of func(*Spec) *CAs) *Issuers {
	all := &Issuers{of, make(map[issuer][]*Spec)}
	for _, t := range tenants {
		if cas := of(t); cas != nil {
			identities := cas.Only
			if len(identities) == 0 {
				identities = []string{""}
			}
			for _, ca := range cas.Certs.Parse() {
				for _, id := range identities {
					name := string(ca.RawSubject)
					all.add(issuer{name: name, key: string(ca.SubjectKeyId), identity: id}, t)
					all.add(issuer{name: name, any: true, identity: id}, t)
				}
			}
		}
	}
	if len(all.by) == 0 {
		return nil
	}
	return all
}

func (all *Issuers) add(at issuer, t *Spec) {
	if !slices.Contains(all.by[at], t) {
		all.by[at] = append(all.by[at], t)
	}
}

// Find is the one tenant that trusts a certificate, which intermediates follow.
// It fails if none does, or if several do.
func (all *Issuers) Find(chain []*x509.Certificate) (*Spec, error) {
	switch {
	case len(chain) == 0:
		return nil, errNobodys
	case len(chain) > maxChain:
		return nil, fmt.Errorf("%d certificates are shown, and at most %d are looked at", len(chain), maxChain)
	}
	var found *Spec
	candidates := all.candidates(chain)
	if len(candidates) > maxCandidates {
		return nil, fmt.Errorf("CAs of more than %d tenants have the name of its issuer, or identities of it: it has to be issued with an authority key identifier, and for one tenant", maxCandidates)
	}
	for _, t := range candidates {
		if cas := all.of(t); !cas.counts(chain[0]) || !tlsreload.Issued(chain, cas.Pool(), time.Now()) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("the tenants %q and %q both trust it: it has to ask for one by name", found.Name, t.Name)
		}
		found = t
	}
	if found == nil {
		return nil, errNobodys
	}
	return found, nil
}

// candidates returns the tenants with a CA that a certificate of chain names as its issuer. It
// stops where there are too many: of thousands, each would be looked for among the others.
func (all *Issuers) candidates(chain []*x509.Certificate) (out []*Spec) {
	for at := range issuersOf(chain) {
		for _, t := range all.by[at] {
			if !slices.Contains(out, t) {
				out = append(out, t)
			}
			if len(out) > maxCandidates {
				return out
			}
		}
	}
	return out
}

// issuersOf returns what a CA of chain may be listed as: for each certificate, by each identity of
// the first one and by none. A root behind the first leads to no tenant that those before it do
// not lead to, but names no key, and so would lead to every tenant whose CA has its name.
func issuersOf(chain []*x509.Certificate) iter.Seq[issuer] {
	return func(yield func(issuer) bool) {
		identities := append([]string{""}, NamesOf(chain[0])...)
		for i, cert := range chain {
			if i > 0 && selfSigned(cert) {
				continue
			}
			for _, at := range issuersNamed(cert) {
				for _, at.identity = range identities {
					if !yield(at) {
						return
					}
				}
			}
		}
	}
}

// issuersNamed returns what the CA may be listed as that a certificate names as its issuer. The
// CA's own certificate may lack the identifier of its key.
func issuersNamed(cert *x509.Certificate) []issuer {
	name := string(cert.RawIssuer)
	if len(cert.AuthorityKeyId) == 0 {
		return []issuer{{name: name, any: true}}
	}
	return []issuer{{name: name, key: string(cert.AuthorityKeyId)}, {name: name}}
}

// selfSigned says whether a certificate is a root. Its names do not tell: a CA that
// another of the same name has signed has the same ones.
func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawIssuer, cert.RawSubject) &&
		cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}
