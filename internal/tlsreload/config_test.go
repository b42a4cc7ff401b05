package tlsreload_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func systemHasRoots() bool {
	pool, err := x509.SystemCertPool()
	return err == nil && !pool.Equal(x509.NewCertPool())
}

// pair is a server and a client Source of one CA.
func pair(t *testing.T) (ca *pki.CA, sd, cd dir, server, client *tlsreload.Source) {
	t.Helper()
	ca, sd, cd = newCA(t), newDir(t), newDir(t)
	sd.put(issue(t, ca, "server"), ca)
	cd.put(issue(t, ca, "client"), ca)
	return ca, sd, cd, source(t, sd.files(), tlsreload.Options{Name: "s"}), source(t, cd.files(), tlsreload.Options{Name: "c"})
}

func TestSessionsResumeUntilCertificatesChange(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			ca, sd, cd, server, client := pair(t)
			sc, cc := server.Server(), client.Client("server.test")
			cc.MaxVersion = version
			resumed := func() bool {
				t.Helper()
				o := mustPass(t, handshake(t, sc, cc))
				testutil.Holds(t, clientCN(o) != "" && serverCN(o) != "", "a resumed session forgot its peer")
				return o.client.DidResume
			}
			testutil.Requires(t, !resumed(), "the first handshake resumed something")
			testutil.Holds(t, resumed(), "an unchanged server did not resume")
			sd.put(issue(t, ca, "server again"), ca)
			reload(t, server)
			testutil.Holds(t, resumed(), "tickets died with a reload that leaves the CA alone")
			cd.put(issue(t, ca, "client again"), ca)
			reload(t, client)
			o := mustPass(t, handshake(t, sc, cc))
			testutil.Holds(t, !o.client.DidResume && clientCN(o) == "client again",
				"a changed client resumed as %q", clientCN(o))
		})
	}
}

// Neither side goes on with a session of a peer whose CA it has trusted until then.
func TestSessionsDoNotOutliveTheirCA(t *testing.T) {
	for _, side := range []string{"server", "client"} {
		_, sd, cd, server, client := pair(t)
		sc, cc := server.Server(), client.Client("server.test")
		mustPass(t, handshake(t, sc, cc))
		testutil.Requires(t, mustPass(t, handshake(t, sc, cc)).client.DidResume, "nothing to test: no resumption")
		changed, files, refusal := server, sd, func(o outcome) error { return o.serverErr }
		if side == "client" {
			changed, files, refusal = client, cd, func(o outcome) error { return o.clientErr }
		}
		files.write("ca.crt", newCA(t).CertPEM)
		reload(t, changed)
		testutil.Holds(t, refusal(handshake(t, sc, cc)) != nil, "a %s accepted a peer whose CA is no longer trusted", side)
	}
}

func TestServerNames(t *testing.T) {
	_, _, _, server, client := pair(t)
	sc := server.Server()
	for name, ok := range map[string]bool{
		"server.test": true, "server.test.": true, "127.0.0.1": true, "[127.0.0.1]": true,
		"::ffff:127.0.0.1": true, "fe80::1": true, "fe80::1%eth0": true, "fe80::2%eth0": false,
		"other.test": false, "127.0.0.2": false, "::1": false, "": false,
	} {
		err := handshake(t, sc, client.Client(name)).clientErr
		testutil.Equal(t, err == nil, ok, "%q is accepted (%v)", name, err)
	}
	filled := client.Client("") // as net/http and grpc do
	filled.ServerName = "server.test"
	mustPass(t, handshake(t, sc, filled))
	filled.ServerName = "other.test"
	testutil.Holds(t, handshake(t, sc, filled).clientErr != nil, "a filled-in name was not checked")
}

func TestClientsWithoutCertificate(t *testing.T) {
	_, sd, cd, server, _ := pair(t)
	bare := source(t, tlsreload.Files{CA: cd.file("ca.crt")}, tlsreload.Options{}).Client("server.test")
	testutil.Holds(t, handshake(t, server.Server(), bare).serverErr != nil,
		"a server with a CA let in a client without a certificate")
	open := source(t, tlsreload.Files{Cert: sd.file("tls.crt"), Key: sd.file("tls.key")}, tlsreload.Options{})
	mustPass(t, handshake(t, open.Server(), bare))
}

func TestVersionsAndSuitesAreKept(t *testing.T) {
	_, sd, _, _, client := pair(t)
	strict := source(t, sd.files(), tlsreload.Options{MinVersion: tls.VersionTLS13})
	cc := client.Client("server.test")
	cc.MaxVersion = tls.VersionTLS12
	testutil.Holds(t, handshake(t, strict.Server(), cc).err() != nil, "TLS 1.2 passed a minimum of 1.3")
	suite := tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	one := source(t, sd.files(), tlsreload.Options{CipherSuites: []uint16{suite}})
	testutil.Equal(t, mustPass(t, handshake(t, one.Server(), cc)).client.CipherSuite, suite, "the suite")
	cc.MinVersion, cc.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	testutil.Holds(t, handshake(t, one.Server(), cc).err() != nil, "TLS 1.1 was spoken")
	testutil.Holds(t, one.Server().DynamicRecordSizingDisabled && cc.DynamicRecordSizingDisabled, "records start small")
}

func TestParse(t *testing.T) {
	for name, want := range map[string]uint16{
		"": 0, "VersionTLS10": tls.VersionTLS12, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
	} {
		testutil.Equal(t, testutil.Must(tlsreload.ParseVersion(name))(t), want, "%q", name)
	}
	testutil.Fails(t, testutil.Err(tlsreload.ParseVersion("TLS1.2")), "an unknown version passed")
	ids, err := tlsreload.ParseCipherSuites([]string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"})
	testutil.Holds(t, len(ids) == 2 && err == nil, "%v, %v", ids, err)
	for _, bad := range []string{"TLS_RSA_WITH_RC4_128_SHA", "x", ""} {
		testutil.Fails(t, testutil.Err(tlsreload.ParseCipherSuites([]string{bad})), "suite %q passed", bad)
	}
	ids, err = tlsreload.ParseCipherSuites(nil)
	testutil.Holds(t, ids == nil && err == nil, "no names are not the default")
}
