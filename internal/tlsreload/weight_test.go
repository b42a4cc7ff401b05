package tlsreload_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"runtime"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// stuffed is a certificate with an extension that is full of item.
func stuffed(t *testing.T, id []int, item string, size int) []byte {
	t.Helper()
	value := testutil.Must(asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: bytes.Repeat([]byte(item), size/len(item))}))(t)
	key := testutil.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtraExtensions: []pkix.Extension{{Id: id, Value: value}}}
	return testutil.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
}

// Whatever a certificate is full of, Weight knows about what it takes.
func TestWeight(t *testing.T) {
	const size, copies = 8 << 10, 20
	for name, der := range map[string][]byte{
		"URIs":      stuffed(t, []int{2, 5, 29, 17}, "\x86\x00", size),
		"names":     stuffed(t, []int{2, 5, 29, 17}, "\x82\x01a", size),
		"addresses": stuffed(t, []int{2, 5, 29, 17}, "\x87\x04\x7f\x00\x00\x01", size),
		"usages":    stuffed(t, []int{2, 5, 29, 37}, "\x06\x01\x2a", size),
		"nothing":   stuffed(t, []int{1, 2, 3}, "\x05\x00", size),
	} {
		var before, after runtime.MemStats
		certs := make([]*x509.Certificate, copies)
		for range 3 { // what tests before this one have left goes, too
			runtime.GC()
		}
		runtime.ReadMemStats(&before)
		for i := range certs {
			cert, err := x509.ParseCertificate(der)
			testutil.Requires(t, err == nil, "%v %v", name, err)
			certs[i] = cert
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		taken, weight := int(after.HeapAlloc-before.HeapAlloc), tlsreload.Weight(certs)
		testutil.Between(t, weight, taken/3, 3*taken+2*copies*len(der),
			"%s: %d certificates of %d bytes take %d and weigh", name, copies, len(der), taken)
		runtime.KeepAlive(certs)
	}
}

// A peer that shows a certificate of a CA gets in with others behind it, and not
// with some that are there to take memory, be they looked at or not.
func TestLargeCertificatesAreRefused(t *testing.T) {
	own := newCA(t)
	d := newDir(t)
	d.put(issue(t, own, "server"), own)
	s := source(t, d.files(), tlsreload.Options{Name: "server"})
	asking := s.ServerFor(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) {
		return &tlsreload.Guest{Key: "by certificate", Verify: func([]*x509.Certificate) error { return nil }}, nil
	})
	for name, server := range map[string]*tls.Config{"CAs": s.Server(), "asking": asking} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			pair := issue(t, own, "client").TLS()
			mustPass(t, handshake(t, server, trusting(version, pair)))
			pair.Certificate = append(pair.Certificate, stuffed(t, []int{2, 5, 29, 17}, "\x86\x00", 1<<10))
			mustPass(t, handshake(t, server, trusting(version, pair)))
			pair.Certificate = append(pair.Certificate, stuffed(t, []int{2, 5, 29, 17}, "\x86\x00", 8<<10))
			if o := handshake(t, server, trusting(version, pair)); o.serverErr == nil || !strings.Contains(o.serverErr.Error(), "bytes of memory") {
				t.Errorf("%s, %s: %v", name, tls.VersionName(version), o.serverErr)
			}
		}
	}
}
