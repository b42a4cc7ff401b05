package tlsreload_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// A listener that serves guests shows each its own certificate, trusts for each
// its own CA alone, and resumes sessions only where they began.
func TestGuestsAreIsolated(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			own, a, b := newCA(t), newCA(t), newCA(t)
			d := newDir(t)
			d.put(issue(t, own, "own server"), own)
			shown := issue(t, a, "server of a").TLS()
			owner := ""
			guest := &tlsreload.Guest{Key: "a 1", Cert: &shown, CAs: a.Pool}
			s := source(t, d.files(), tlsreload.Options{Name: "server"})
			server := s.ServerFor(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) {
				switch owner {
				case "a":
					return guest, nil
				case "gone":
					return nil, errors.New("gone")
				}
				return nil, nil
			})
			client := trusting(version, issue(t, a, "client of a").TLS())
			owner = "a"
			if o := mustPass(t, handshake(t, server, client)); serverCN(o) != "server of a" || clientCN(o) != "client of a" {
				t.Errorf("got %q and %q", serverCN(o), clientCN(o))
			}
			testutil.Holds(t, mustPass(t, handshake(t, server, client)).client.DidResume, "a guest's session is not resumed")

			// The same session, where it did not begin.
			owner = ""
			testutil.Holds(t, handshake(t, server, client).err() != nil, "a guest's client is let in by the listener itself")
			owner = "a"
			mustPass(t, handshake(t, server, client))
			guest = &tlsreload.Guest{Key: "b", CAs: b.Pool}
			testutil.Holds(t, handshake(t, server, client).err() != nil, "a guest's client is let in by another")
			guest = &tlsreload.Guest{Key: "a 2", Cert: &shown, CAs: a.Pool}
			mustPass(t, handshake(t, server, client))
			guest = &tlsreload.Guest{Key: "a 3", Cert: &shown, CAs: a.Pool}
			testutil.Holds(t, !mustPass(t, handshake(t, server, client)).client.DidResume,
				"a session is resumed under another key")

			owner = "gone"
			if o := handshake(t, server, client); o.clientErr == nil || !strings.Contains(o.clientErr.Error(), "unrecognized name") {
				t.Errorf("nobody's client hears %v", o.clientErr)
			} else if !tlsreload.NameUnknown(o.clientErr) || tlsreload.NameUnknown(o.serverErr) || tlsreload.RefusedByPeer(o.clientErr) {
				t.Errorf("it is not told apart: %v, %v", o.clientErr, o.serverErr)
			}
		})
	}
}

// Where certificates decide, those of the Source's own CAs are its own, as ever;
// all others are Verify's to judge, whenever a session is resumed too.
func TestVerifyDecidesWithoutServerName(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, open := range []bool{false, true} { // the Source's own need no certificate
			own, a := newCA(t), newCA(t)
			d := newDir(t)
			d.put(issue(t, own, "own server"), own)
			files := d.files()
			if open {
				files.CA = ""
			}
			judged, good := 0, true
			guest := &tlsreload.Guest{Key: "by certificate", Verify: func(chain []*x509.Certificate) error {
				judged++
				if !good || chain[0].Subject.CommonName != "client of a" {
					return errors.New("nobody's")
				}
				return nil
			}}
			s := source(t, files, tlsreload.Options{Name: "server"})
			server := s.ServerFor(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) { return guest, nil })
			what := fmt.Sprintf("%s, open: %v", tls.VersionName(version), open)
			nobody, named := trusting(version), -1
			nobody.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				named = len(info.AcceptableCAs)
				return new(tls.Certificate), nil
			}
			err := handshake(t, server, nobody).err()
			testutil.Equal(t, named, 0, "%s: CAs that whoever asks is told of", what)
			testutil.Equal(t, err == nil, open, "%s: one without a certificate is let in (%v)", what, err)
			if o := handshake(t, server, trusting(version, issue(t, own, "own client").TLS())); (o.err() == nil) == open || judged > 0 != open {
				t.Errorf("%s: own: %v, judged %d times", what, o.err(), judged)
			}
			judged = 0
			of := trusting(version, issue(t, a, "client of a").TLS())
			for i, resumed := range []bool{false, true} {
				if o := mustPass(t, handshake(t, server, of)); o.client.DidResume != resumed || judged != i+1 {
					t.Errorf("%s: resumed: %v, judged %d times", what, o.client.DidResume, judged)
				}
			}
			good = false
			testutil.Holds(t, handshake(t, server, of).err() != nil, "%s: a session is good whose certificate is not", what)
		}
	}
}

// Where certificates may be left out, the Source's own and those that Verify knows
// are let in, as is whoever has none, and nobody else.
func TestBareGuestsNeedNoCertificate(t *testing.T) {
	own, a, stranger := newCA(t), newCA(t), newCA(t)
	d := newDir(t)
	d.put(issue(t, own, "own server"), own)
	s := source(t, d.files(), tlsreload.Options{Name: "server"})
	guest := &tlsreload.Guest{Key: "reader", Bare: true, Verify: func(chain []*x509.Certificate) error {
		if !tlsreload.Issued(chain, a.Pool(), time.Now()) {
			return errors.New("nobody's")
		}
		return nil
	}}
	server := s.ServerFor(func(*tls.ClientHelloInfo) (*tlsreload.Guest, error) { return guest, nil })
	for what, c := range map[string]struct {
		certs   []tls.Certificate
		in, own bool
	}{
		"none":         {nil, true, false},
		"its own":      {[]tls.Certificate{issue(t, own, "own").TLS()}, true, true},
		"a guest's":    {[]tls.Certificate{issue(t, a, "a").TLS()}, true, false},
		"a stranger's": {[]tls.Certificate{issue(t, stranger, "x").TLS()}, false, false},
	} {
		o := handshake(t, server, trusting(0, c.certs...))
		testutil.Equal(t, o.err() == nil, c.in, "%s: %v", what, o.err())
		testutil.Holds(t, o.err() != nil || s.Trusts(o.server.PeerCertificates) == c.own,
			"%s: trusted as the Source's own: %v", what, !c.own)
	}
	files := d.files()
	files.CA = ""
	for _, ca := range []*pki.CA{own, tlsreload.SystemCA} {
		testutil.Holds(t, !source(t, files, tlsreload.Options{Name: "server"}).Trusts(chainOf(issue(t, ca, "own"))),
			"one without CAs trusts somebody")
	}
}

func chainOf(p pki.Pair) []*x509.Certificate { return []*x509.Certificate{p.TLS().Leaf} }

func TestIssued(t *testing.T) {
	own, other := newCA(t), newCA(t)
	chain := func(ca *pki.CA, l pki.Leaf) []*x509.Certificate {
		pair := testutil.Must(ca.Issue(l))(t)
		return []*x509.Certificate{pair.TLS().Leaf}
	}
	client := chain(own, pki.Leaf{CommonName: "c", Client: true, Lifetime: time.Hour})
	now := time.Now()
	for name, c := range map[string]struct {
		chain []*x509.Certificate
		at    time.Time
		want  bool
	}{
		"its client":                 {client, now, true},
		"its client, once expired":   {client, now.Add(2 * time.Hour), false},
		"its client, as it was then": {client, client[0].NotAfter, true},
		"no certificate":             {nil, now, false},
		"its server":                 {chain(own, pki.Leaf{CommonName: "s", DNS: []string{"s"}, Server: true}), now, false},
		"another CA's client":        {chain(other, pki.Leaf{CommonName: "c", Client: true}), now, false},
	} {
		testutil.Equal(t, tlsreload.Issued(c.chain, own.Pool(), c.at), c.want, "%s", name)
	}
	expired := chain(own, pki.Leaf{CommonName: "c", Client: true, Lifetime: -time.Second})
	testutil.Holds(t, tlsreload.StillIssued(expired, own.Pool()) && !tlsreload.StillIssued(expired, other.Pool()),
		"once it has expired, its issuer does not matter, or counts no more")
	synctest.Test(t, func(t *testing.T) { // the clock of which says 2000
		testutil.Holds(t, tlsreload.StillIssued(client, own.Pool()) && !tlsreload.StillIssued(client, other.Pool()),
			"where the clock was set back, its issuer does not matter, or counts no more")
	})
}
