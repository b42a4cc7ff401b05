package tlsreload_test

import (
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func TestInspect(t *testing.T) {
	d := newDir(t)
	ca, other := newCA(t), newCA(t)
	d.put(issue(t, ca, "one"), ca)
	cas, err := d.files().TrustedCAs()
	testutil.Holds(t, err == nil && len(cas) == 1 && cas[0].Equal(ca.Certificate()), "CAs %v, %v", cas, err)
	chain, err := d.files().Chain()
	testutil.Holds(t, err == nil && len(chain) != 0 && chain[0].Subject.CommonName == "one", "chain %v, %v", chain, err)
	for what, c := range map[string]struct {
		change   func()
		path     string
		is       error
		mismatch bool
	}{
		"no certificate":             {func() { d.write("tls.crt", []byte("none")) }, "tls.crt", tlsreload.ErrNoCertificate, false},
		"key of another certificate": {func() { d.write("tls.key", issue(t, other, "two").KeyPEM) }, "tls.key", nil, true},
		"no key":                     {func() { _ = os.Remove(d.file("tls.key")) }, "tls.key", fs.ErrNotExist, false},
	} {
		d.put(issue(t, ca, "one"), ca)
		c.change()
		_, err := d.files().Chain()
		var file *tlsreload.FileError
		testutil.Holds(t, errors.As(err, &file) && file.Path == d.file(c.path) && file.Mismatch == c.mismatch &&
			(c.is == nil || errors.Is(err, c.is)), "%s: %v", what, err)
	}
	d.write("ca.crt", nil)
	testutil.ErrorIs(t, testutil.Err(d.files().TrustedCAs()), tlsreload.ErrNoCertificate, "an empty CA file")
}

// Whatever stands beside certificates, as in bundles of distributions and files of other programs,
// is no fault of a file. What is cut short, in the middle too, is one.
func TestWhatStandsBesideCertificates(t *testing.T) {
	ca, more := string(newCA(t).CertPEM), string(newCA(t).CertPEM)
	block := func(kind, data string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(data)}))
	}
	for text, want := range map[string]int{
		ca + more: 2,
		strings.ReplaceAll(ca+more, "\n", "\r\n"): 2,
		strings.ReplaceAll(ca+more, "\n", " \n"):  2,
		strings.TrimSpace(ca + more):              2,
		"# A CA\nSubject: CN=x\n=====\n" + ca + "\n\n Bag Attributes: <-----\n" + more + "junk\n\x00":                                     2,
		"#-----BEGIN CERTIFICATE-----\n#MII\n#-----END CERTIFICATE-----\n" + ca:                                                           1,
		block("TRUSTED CERTIFICATE", "x") + ca:                                                                                            1,
		block("EC PARAMETERS", "x") + block("EC PRIVATE KEY", "y") + ca + block("PRIVATE KEY", ""):                                        1,
		"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n" + ca: 1,
		ca + more[:len(more)/2]:      -1,
		ca[:len(ca)/2] + more:        -1,
		ca[:len(ca)/2] + "\n" + more: -1,
		ca + "-----BEGIN CERT":       -1,
	} {
		d := newDir(t)
		d.write("ca.crt", []byte(text))
		certs, err := d.files().TrustedCAs()
		testutil.Holds(t, (err != nil) == (want < 0) && (want < 0 || len(certs) == want),
			"%q: %d certificates, %v", text, len(certs), err)
	}
}

// A chain is sent as it is: whether a peer can read an issuer of it is the peer's affair.
func TestAChainMayHaveWhatGoCannotRead(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	good := issue(t, ca, "good")
	d.put(good, ca)
	d.write("tls.crt", append(slices.Clone(good.CertPEM), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("of a curve that Go has not")})...))
	s := source(t, d.files(), tlsreload.Options{})
	testutil.Equal(t, len(s.Certificate().Certificate), 2, "certificates that are sent")
}
