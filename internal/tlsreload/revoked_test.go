package tlsreload_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// revoke writes the list of a CA.
func (d dir) revoke(ca *pki.CA, next time.Duration, certs ...pki.Pair) (list []byte) {
	d.t.Helper()
	var all []*x509.Certificate
	for _, p := range certs {
		all = append(all, p.TLS().Leaf)
	}
	list = testutil.Must(ca.Revoke(time.Now().Add(next), all...))(d.t)
	d.write("ca.crl", list)
	return list
}

func der(pemList []byte) []byte {
	block, _ := pem.Decode(pemList)
	return block.Bytes
}

// A certificate that a list names is refused by either side, also where its session is
// resumed, and no longer trusted where it is connected. Others are as before. The list is
// followed, as PEM and as DER.
func TestRevokedCertificatesAreRefused(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	good, bad := issue(t, ca, "good"), issue(t, ca, "bad")
	d.put(good, ca)
	d.revoke(ca, time.Hour)
	files := d.files()
	files.CRL = d.file("ca.crl")
	changed := 0
	s := source(t, files, tlsreload.Options{})
	s.OnChange(func() { changed++ })
	plain := files
	plain.CRL = ""
	byGood, byBad := trusting(0, good.TLS()), trusting(0, bad.TLS())
	server := s.Server()
	refused := func(o outcome) bool { return o.serverErr != nil && strings.Contains(o.serverErr.Error(), "revoked") }
	for range 2 { // the second is resumed
		mustPass(t, handshake(t, server, byGood))
		mustPass(t, handshake(t, server, byBad))
	}
	list := d.revoke(ca, time.Hour, bad)
	for _, form := range [][]byte{list, der(list)} {
		d.write("ca.crl", form)
		testutil.NoError(t, s.Reload())
		for range 2 {
			mustPass(t, handshake(t, server, byGood))
			o := handshake(t, server, byBad)
			testutil.Holds(t, refused(o), "a revoked certificate: %v", o.err())
		}
		for cert, want := range map[*x509.Certificate]bool{good.TLS().Leaf: true, bad.TLS().Leaf: false} {
			if chain := []*x509.Certificate{cert}; s.Trusts(chain) != want || errors.Is(s.Recheck(chain), tlsreload.ErrRevoked) == want {
				t.Errorf("%s: trusted %v, judged again %v", cert.Subject.CommonName, s.Trusts(chain), s.Recheck(chain))
			}
		}
		testutil.Fails(t, s.Recheck(chainOf(issue(t, newCA(t), "good"))), "one of another CA, judged again")
		asServer := bad.TLS()
		o := handshake(t, &tls.Config{Certificates: []tls.Certificate{asServer}}, s.Client("server.test"))
		testutil.Holds(t, o.clientErr != nil, "a server with a revoked certificate is accepted")
	}
	d.revoke(ca, time.Hour)
	testutil.NoError(t, s.Reload())
	mustPass(t, handshake(t, server, byBad))
	testutil.Equal(t, changed, 3, "changes were told")
}

// A list that is not to be trusted is no list: the program does not start with it, and goes
// on with the one before. One that is out of date counts, and is said once.
func TestListsThatCannotBeUsed(t *testing.T) {
	ca, other, d := newCA(t), newCA(t), newDir(t)
	bad := issue(t, ca, "bad")
	d.put(issue(t, ca, "own"), ca)
	files := d.files()
	files.CRL = d.file("ca.crl")
	foreign := testutil.Must(other.Revoke(time.Now().Add(time.Hour)))(t)
	good := d.revoke(ca, time.Hour, bad)
	forged := der(good)
	forged[len(forged)-1] ^= 1
	signer := testutil.Must(tls.X509KeyPair(ca.CertPEM, ca.KeyPEM))(t).PrivateKey.(crypto.Signer)
	extended := func(ofList, ofEntry []pkix.Extension) []byte {
		return testutil.Must(x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour), ExtraExtensions: ofList,
			RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: big.NewInt(1), RevocationTime: time.Now(), ExtraExtensions: ofEntry}},
		}, ca.Certificate(), signer))(t)
	}
	for what, c := range map[string]struct {
		list []byte
		want string
	}{
		"foreign":  {foreign, "signed by none of the CAs"},
		"forged":   {forged, "signed by none of the CAs"},
		"second":   {append(bytes.Clone(good), foreign...), "signed by none of the CAs"},
		"no list":  {[]byte("x"), "no revocation list"},
		"CA":       {ca.CertPEM, "X509 CRL alone"},
		"cut":      {der(good)[:40], "no revocation list"},
		"no bytes": {nil, "no revocation list"},
		"cut PEM":  {slices.Concat(good, good[:len(good)/2]), "cut short"},
		"marked":   {slices.Concat(good, []byte("\ufeff"), good), "cut short"}, // a byte order mark hides the second
		"delta":    {extended([]pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 27}, Critical: true, Value: []byte{2, 1, 1}}}, nil), "it is a delta"},
		"indirect": {extended(nil, []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 29}, Critical: true, Value: []byte{48, 0}}}), "of other issuers"},
		"garbage":  {pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("x")}), "version 2 is needed"},
	} {
		d.write("ca.crl", c.list)
		if _, err := tlsreload.New(files, tlsreload.Options{}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), files.CRL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d.write("ca.crl", good)
	missing, ownerless := files, files
	missing.CRL, ownerless.CA = d.file("none"), ""
	for what, f := range map[string]tlsreload.Files{"no such file": missing, "signed by none": ownerless} {
		testutil.ErrorSays(t, testutil.Err(tlsreload.New(f, tlsreload.Options{})), what, "a list")
	}
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	s := source(t, files, tlsreload.Options{Log: log})
	d.write("ca.crl", foreign)
	testutil.Holds(t, s.Reload() != nil, "a foreign list comes into use")
	chain := []*x509.Certificate{bad.TLS().Leaf}
	testutil.Holds(t, !s.Trusts(chain), "without its list, a revoked certificate is trusted")
	d.revoke(ca, -time.Minute, bad)
	for range 3 {
		testutil.NoError(t, s.Reload())
	}
	now := s.Stats()
	testutil.Holds(t, now.Lists == files.CRL && now.ListsUntil.Before(time.Now()) && now.First[files.CA] != nil, "figures: %+v", now)
	if n := strings.Count(out.String(), "out of date"); s.Trusts(chain) || n != 1 {
		t.Errorf("out of date: trusted %v, said %d times: %s", s.Trusts(chain), n, out.String())
	}
}

// A guest's lists refuse its peers as the Source's do its own: by name, by certificate, and
// where a session is resumed. Refusals are counted.
func TestAGuestsListsRefuseItsPeers(t *testing.T) {
	own, a, d := newCA(t), newCA(t), newDir(t)
	d.put(issue(t, own, "own server"), own)
	good, bad := issue(t, a, "good"), issue(t, a, "bad")
	lists := func(certs ...*x509.Certificate) *tlsreload.Lists {
		text := testutil.Must(a.Revoke(time.Now().Add(time.Hour), certs...))(t)
		return testutil.Must(tlsreload.ParseLists(text, []*x509.Certificate{a.Certificate()}))(t)[0]
	}
	for what, guest := range map[string]func(l *tlsreload.Lists) *tlsreload.Guest{
		"by name": func(l *tlsreload.Lists) *tlsreload.Guest {
			return &tlsreload.Guest{Key: "a", CAs: a.Pool, Lists: l}
		},
		"by name, judged": func(l *tlsreload.Lists) *tlsreload.Guest {
			return &tlsreload.Guest{Key: "a", CAs: a.Pool, Lists: l, Judge: func(*x509.Certificate) error { return nil }}
		},
		"by certificate": func(l *tlsreload.Lists) *tlsreload.Guest {
			return &tlsreload.Guest{Key: "a", Verify: l.Check}
		},
	} {
		s := source(t, d.files(), tlsreload.Options{Name: "server"})
		now := guest(lists())
		server := s.ServerFor(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) { return now, nil })
		byGood, byBad := trusting(0, good.TLS()), trusting(0, bad.TLS())
		mustPass(t, handshake(t, server, byBad))
		mustPass(t, handshake(t, server, byGood))
		now = guest(lists(bad.TLS().Leaf))
		for range 2 {
			if o := handshake(t, server, byBad); o.serverErr == nil || !errors.Is(o.serverErr, tlsreload.ErrRevoked) {
				t.Errorf("%s: a revoked certificate: %v", what, o.err())
			}
			mustPass(t, handshake(t, server, byGood))
		}
		testutil.Equal(t, s.Stats().Refused, 2, "%s: refusals are counted", what)
	}
}

// Each side has the lists of its own CAs alone, though another side's has the same name.
func TestSidesHaveTheListsOfTheirOwnCAs(t *testing.T) {
	a, b := newCA(t), newCA(t)
	bad := issue(t, a, "bad")
	soon, late := time.Now().Add(time.Hour).Truncate(time.Second), time.Now().Add(2*time.Hour)
	text := slices.Concat(testutil.Must(a.Revoke(late, bad.TLS().Leaf))(t), testutil.Must(a.Revoke(soon))(t), testutil.Must(a.Revoke(late))(t))
	got := testutil.Must(tlsreload.ParseLists(text, []*x509.Certificate{a.Certificate()}, []*x509.Certificate{b.Certificate()}, nil))(t)
	for i, want := range []error{tlsreload.ErrRevoked, nil, nil} {
		testutil.ErrorIs(t, got[i].Check(chainOf(bad)), want, "side %d", i)
	}
	testutil.Holds(t, got[0].Until.Equal(soon) && got[1].Until.IsZero(),
		"until %v and %v, want %v and never", got[0].Until, got[1].Until, soon)
}
