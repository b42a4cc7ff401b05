package tenant

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// signer is a CA of a test. All have the same name.
type signer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

var sameName = pkix.Name{CommonName: "ca"}

func newSigner(t *testing.T) *signer {
	s := &signer{t: t, key: newKey(t)}
	s.cert = s.sign(s.template(sameName), s.key, nil)
	return s
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return testutil.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// template is of a CA's certificate.
func (s *signer) template(name pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: name, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

// sign makes a certificate of a key; parent: nil is itself.
func (s *signer) sign(template *x509.Certificate, of *ecdsa.PrivateKey, parent *x509.Certificate) *x509.Certificate {
	s.t.Helper()
	if parent == nil {
		parent = template
	}
	der := testutil.Must(x509.CreateCertificate(rand.Reader, template, parent, of.Public(), s.key))(s.t)
	return testutil.Must(x509.ParseCertificate(der))(s.t)
}

// peer is a client's certificate; without names its issuer's key is not told.
func (s *signer) peer(keys bool) *x509.Certificate {
	parent := *s.cert
	if !keys {
		parent.SubjectKeyId = nil
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "peer"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return s.sign(template, newKey(s.t), &parent)
}

// cross is a certificate for the key of another CA.
func (s *signer) cross(other *signer) *x509.Certificate {
	return s.sign(s.template(sameName), other.key, s.cert)
}

// told is a tenant whose clients are told by certificate.
func (s *signer) tenant(name string) *Spec {
	cas := &CAs{Certs: tlsreload.CertsOf([]*x509.Certificate{s.cert})}
	return &Spec{Name: name, ByCertificate: true, Clients: cas}
}

func TestACertificateIsOfTheTenantWhoseCAIssuedIt(t *testing.T) {
	a, b, stranger, byName := newSigner(t), newSigner(t), newSigner(t), newSigner(t)
	tenants := map[string]*Spec{"a": a.tenant("a"), "b": b.tenant("b"), "c": byName.tenant("c")}
	tenants["c"].ByCertificate = false
	all := newIssuers(tenants, clientsOf)
	late := a.peer(true)
	expired := *late
	expired.NotAfter = time.Now().Add(-time.Minute)
	for _, c := range []struct {
		what  string
		chain []*x509.Certificate
		want  string // the tenant, or a part of the error
	}{
		{"one of a", []*x509.Certificate{a.peer(true)}, "a"},
		{"one of b", []*x509.Certificate{b.peer(true)}, "b"},
		{"one of b that does not tell the key", []*x509.Certificate{b.peer(false)}, "b"},
		{"one of b, with the CA of a", []*x509.Certificate{b.peer(true), a.cert}, "b"},
		{"one of a, cross-signed by b, without that", []*x509.Certificate{a.peer(true)}, "a"},
		{"one of a, cross-signed by b", []*x509.Certificate{a.peer(true), b.cross(a)}, "both trust it"},
		{"a stranger's, cross-signed by b", []*x509.Certificate{stranger.peer(true), b.cross(stranger)}, "b"},
		{"a stranger's", []*x509.Certificate{stranger.peer(true)}, errNobodys.Error()},
		{"a stranger's, with the CA of a", []*x509.Certificate{stranger.peer(true), a.cert}, errNobodys.Error()},
		{"one of a tenant that is not told so", []*x509.Certificate{byName.peer(true)}, errNobodys.Error()},
		{"a CA itself, which is no client", []*x509.Certificate{a.cert}, ""},
		{"one that has expired", []*x509.Certificate{&expired}, errNobodys.Error()},
		{"a long chain", append([]*x509.Certificate{a.peer(true)}, make([]*x509.Certificate, maxChain)...), "at most"},
	} {
		found, err := all.Find(c.chain)
		got := fmt.Sprint(err)
		if err == nil {
			got = found.Name
		}
		testutil.Holds(t, (err != nil || got == c.want || c.want == "") && (err == nil || strings.Contains(got, c.want)),
			"%s: %s, want %s", c.what, got, c.want)
	}
	testutil.Holds(t, newIssuers(tenants, agentsOf) == nil,
		"agents are told by certificate of tenants that have no CA for them")
}

// A CA's certificate may lack the identifier of its key, which the certificates that it issues
// name nevertheless.
func TestACAWithoutItsKeysIdentifier(t *testing.T) {
	s := &signer{t: t, key: newKey(t)}
	template := s.template(sameName)
	template.IsCA, template.BasicConstraintsValid = false, false // so that it gets no identifier
	constraints := pkix.Extension{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}
	template.ExtraExtensions = []pkix.Extension{constraints}
	s.cert = s.sign(template, s.key, nil)
	testutil.Requires(t, s.cert.IsCA && s.cert.SubjectKeyId == nil, "%+v", s.cert)
	all := newIssuers(map[string]*Spec{"a": s.tenant("a")}, clientsOf)
	named := *s.cert
	named.SubjectKeyId = []byte("key")
	issuer := &signer{t, s.key, &named}
	for _, keys := range []bool{true, false} {
		peer := issuer.peer(keys)
		testutil.Equal(t, len(peer.AuthorityKeyId) > 0, keys, "it names a key")
		found, err := all.Find([]*x509.Certificate{peer})
		testutil.Holds(t, err == nil && found.Name == "a", "one that names a key: %v: %v, %v", keys, found, err)
	}
}

// However many CAs have the same name, a few are tried.
func TestManyCAsOfOneName(t *testing.T) {
	tenants := make(map[string]*Spec)
	var last *signer
	for i := range 3 * maxCandidates {
		last = newSigner(t)
		name := fmt.Sprint(i)
		tenants[name] = last.tenant(name)
	}
	all := newIssuers(tenants, clientsOf)
	keyed := []*x509.Certificate{last.peer(true)}
	testutil.Equal(t, len(all.candidates(keyed)), 1, "candidates that are tried")
	found, err := all.Find(keyed)
	testutil.Holds(t, err == nil && found.Clients.Recheck(keyed) == nil, "%v", err)
	rooted := append(keyed, last.cert) // as one that shows its CA's certificate, too
	found, err = all.Find(rooted)
	testutil.Holds(t, err == nil && found.Clients.Recheck(keyed) == nil, "with the root: %v", err)
	unkeyed := []*x509.Certificate{last.peer(false)}
	testutil.Equal(t, len(all.candidates(unkeyed)), maxCandidates+1, "are gathered of those of which none is tried")
	testutil.ErrorSays(t, testutil.Err(all.Find(unkeyed)), "authority key identifier", "without the key's identifier")
}

// Readers are found by the CAs of clients of all tenants, however these are told,
// and one that several trust is nobody's.
func TestAReaderIsFoundByItsCA(t *testing.T) {
	a, b, c, stranger := newSigner(t), newSigner(t), newSigner(t), newSigner(t)
	table := &Table{tenants: map[string]*Spec{"a": a.tenant("a"), "b": b.tenant("b"), "c1": c.tenant("c1"), "c2": c.tenant("c2")}}
	table.tenants["b"].ByCertificate = false
	for _, test := range []struct {
		what string
		of   *signer
		want *Spec
	}{{"of a tenant that is told by certificate", a, table.Tenant("a")}, {"of one that is not", b, table.Tenant("b")}, {"of two", c, nil}, {"of none", stranger, nil}} {
		got := table.ReaderBy([]*x509.Certificate{test.of.peer(true)})
		testutil.Holds(t, got == test.want, "one %s shows %+v", test.what, got)
	}
	got := new(Table).ReaderBy([]*x509.Certificate{a.peer(true)})
	testutil.Holds(t, got == nil, "without tenants, one shows %+v", got)
}
