package tlsreload_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// A judge of peers has his say on both sides, in both versions of TLS, and of
// sessions that are resumed as of new ones; refusals are counted, and logged
// once a minute.
func TestPeersAreJudged(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, side := range []string{"server", "client"} {
			t.Run(tls.VersionName(version)+" "+side, func(t *testing.T) {
				ca, sd, cd := newCA(t), newDir(t), newDir(t)
				sd.put(issue(t, ca, "the server"), ca)
				cd.put(issue(t, ca, "the client"), ca)
				var strict atomic.Bool
				log, lines := logtest.NewNullLogger()
				judging := tlsreload.Options{Name: side, Log: log, Peer: func(cert *x509.Certificate) error {
					if strict.Load() {
						return errors.New("no role for " + cert.Subject.CommonName)
					}
					return nil
				}}
				var so, co tlsreload.Options
				if side == "server" {
					so = judging
				} else {
					co = judging
				}
				ss, cs := source(t, sd.files(), so), source(t, cd.files(), co)
				sc, cc := ss.Server(), cs.Client("server.test")
				cc.MaxVersion = version
				mustPass(t, handshake(t, sc, cc))
				testutil.Requires(t, mustPass(t, handshake(t, sc, cc)).client.DidResume, "nothing to test: no resumption")
				strict.Store(true)
				for range 3 { // the first resumes
					o := handshake(t, sc, cc)
					mine, other, peer := o.serverErr, o.clientErr, "the client"
					if side == "client" {
						mine, other, peer = o.clientErr, o.serverErr, "the server"
					}
					var refused *tlsreload.PeerError
					testutil.Holds(t, errors.As(mine, &refused) && mine.Error() == "no role for "+peer,
						"the judge's side: %v", mine)
					var op *net.OpError
					late := errors.As(other, &op) && op.Op == "write" // TLS 1.3: the alert was there, and nobody has read it
					testutil.Holds(t, (late || tlsreload.RefusedByPeer(other)) && !tlsreload.RefusedByPeer(mine),
						"the other side: %v", other)
				}
				testutil.Equal(t, len(lines.AllEntries()), 1, "lines of three refusals")
				judge := map[string]*tlsreload.Source{"server": ss, "client": cs}[side]
				if at := judge.RefusalLogged(); !strings.Contains(at, " m=") { // which a time of the clock lacks
					t.Errorf("the time of the last refusal follows a clock that is set back: %s", at)
				}
				s, c := ss.Stats().Refused, cs.Stats().Refused
				testutil.Holds(t, s+c == 3 && (s == 0 || side != "client"), "%d and %d of three refusals", s, c)
			})
		}
	}
}

// What peers will refuse is told when a certificate comes into use.
func TestOwnCertificateIsJudged(t *testing.T) {
	ca, d := newCA(t), newDir(t)
	d.put(issue(t, ca, "right"), ca)
	log, lines := logtest.NewNullLogger()
	s := source(t, d.files(), tlsreload.Options{Log: log, Own: func(cert *x509.Certificate) error {
		if cert.Subject.CommonName != "right" {
			return errors.New("it is wrong")
		}
		return nil
	}})
	reload(t, s)
	testutil.Equal(t, len(lines.AllEntries()), 0, "lines of a good certificate")
	d.put(issue(t, ca, "wrong"), ca)
	reload(t, s)
	reload(t, s)
	testutil.Equal(t, testutil.Lines(lines, "it is wrong"), 1, "how often it is told")
}

// With Bare, a peer may show no certificate, and one that it shows is judged all the same.
func TestBarePeersAreLetIn(t *testing.T) {
	ca, sd := newCA(t), newDir(t)
	sd.put(issue(t, ca, "the server"), ca)
	s := source(t, sd.files(), tlsreload.Options{Bare: true, Peer: func(cert *x509.Certificate) error {
		if cert.Subject.CommonName != "good" {
			return errors.New("refused")
		}
		return nil
	}})
	trust := newDir(t)
	trust.write("ca.crt", ca.CertPEM)
	bare := source(t, tlsreload.Files{CA: trust.file("ca.crt")}, tlsreload.Options{})
	for range 2 { // the second resumes
		o := mustPass(t, handshake(t, s.Server(), bare.Client("server.test")))
		testutil.Holds(t, len(o.server.PeerCertificates) == 0, "it has a certificate")
	}
	for name, ok := range map[string]bool{"good": true, "bad": false} {
		cd := newDir(t)
		cd.put(issue(t, ca, name), ca)
		err := handshake(t, s.Server(), source(t, cd.files(), tlsreload.Options{}).Client("server.test")).err()
		testutil.Holds(t, (err == nil) == ok, "%s: %v", name, err)
	}
	stranger := newDir(t)
	stranger.put(issue(t, newCA(t), "good"), ca)
	testutil.Fails(t, handshake(t, s.Server(), source(t, stranger.files(), tlsreload.Options{}).Client("server.test")).err(),
		"a certificate of another CA was accepted")
}
