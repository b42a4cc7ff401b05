package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	var r *Refusal
	if !errors.As(err, &r) {
		return codes.Unknown
	}
	return r.Code
}

func TestGateRefusesBrokenPeers(t *testing.T) {
	g := &Gate{}
	for name, tc := range map[string]struct {
		peer Peer
		want codes.Code
		says string
	}{
		"good":               {Peer{ID: "node-1", Identifiers: "ipv4=10.0.0.1"}, codes.OK, ""},
		"unknown identifier": {Peer{ID: "node-1", Identifiers: "zone=a"}, codes.OK, ""},
		"no id":              {Peer{}, codes.InvalidArgument, "--agent-id"},
		"id of 10 kB":        {Peer{ID: strings.Repeat("a", 10<<10)}, codes.InvalidArgument, "at most 512"},
		"id with newline":    {Peer{ID: "a\nlevel=error"}, codes.InvalidArgument, "unprintable"},
		"id not utf-8":       {Peer{ID: "a\xff"}, codes.InvalidArgument, "unprintable"},
		"broken identifiers": {Peer{ID: "a", Identifiers: "ipv4=%zz"}, codes.InvalidArgument, "URL query"},
	} {
		_, err := g.Admit(context.Background(), tc.peer)
		testutil.Holds(t, codeOf(err) == tc.want && (err == nil || strings.Contains(err.Error(), tc.says)),
			"%s: %v", name, err)
		testutil.Equal(t, status.Code(err), tc.want, "%s: gRPC status", name)
	}
}

// certState is the TLS state of a peer with a certificate of these names.
func certState(t *testing.T, name string, dns []string, ips ...string) *tls.ConnectionState {
	t.Helper()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	leaf := pki.Leaf{CommonName: name, DNS: dns, Client: true}
	for _, ip := range ips {
		leaf.IPs = append(leaf.IPs, net.ParseIP(ip))
	}
	pair := testutil.Must(ca.Issue(leaf))(t)
	cert := testutil.Must(x509.ParseCertificate(pair.TLS().Certificate[0]))(t)
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
}

func TestClaims(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allow")
	text := "# grants\n" +
		"node-1  cidr=10.1.0.0/16&cidr=172.16.0.0/16&host=*.apps.example&host=*tail.example&host=.dot.example&ipv6=2001:db8::7&ipv4=172.24.0.0\n" +
		"node-1  default-route=true # and this\n\n" +
		"*       host=shared.example&cidr=192.0.2.0/24\n"
	testutil.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	claims := testutil.Must(NewClaims(file, logging.Silent()))(t)
	node1 := certState(t, "node-1", []string{"node-1.example", "*.pods.example"}, "10.0.0.1", "2001:db8::1")
	node2 := certState(t, "node-2", nil)
	net8 := certState(t, "net-8", nil, "10.0.0.0")
	star := certState(t, "*", nil)
	for _, tc := range []struct {
		who    *tls.ConnectionState
		claims string
		ok     bool
	}{
		{node1, "", true},
		{node1, "ipv4=10.0.0.1&ipv6=2001:db8:0::1", true},
		{node1, "ipv6=::ffff:10.0.0.1", true}, // the same address under the other key
		{node1, "ipv6=10.0.0.2", false},
		{node1, "ipv4=$(HOST_IP)", true}, // claims nothing
		{node1, "ipv4=10.0.0.2", false},
		{node1, "host=node-1.example&host=a.pods.example", true},
		{node1, "host=a.b.pods.example", false},
		{node1, "host=node-2.example", false},
		{node1, "cidr=10.0.0.1/32", true},
		{node1, "cidr=10.0.0.2/32", false},
		{node1, "cidr=10.0.0.0/31", false},
		{net8, "cidr=10.0.0.0/8", false}, // begins with an address of the certificate
		{node1, "cidr=10.1.2.0/24&ipv4=10.1.200.1&ipv6=2001:db8::7", true},
		{node1, "cidr=10.0.0.0/8", false},
		{node1, "cidr=172.16.0.0/16", true},
		{node1, "cidr=172.16.0.0/12", false}, // begins within what is granted
		{node1, "ipv4=172.24.0.0&cidr=172.24.0.0/32", true},
		{node1, "cidr=172.24.0.0/16", false}, // begins with an address that is granted
		{node1, "cidr=0.0.0.0/0", false},
		{node1, "host=x.apps.example&host=x.y.apps.example&host=shared.example", true},
		{node1, "host=apps.example", false},
		{node1, "host=a.tail.example", false}, // only "*." grants a domain
		{node1, "host=a.dot.example", false},
		{node1, "default-route=true", true},
		{node2, "default-route=true", false},
		{node2, "host=x.apps.example", false},
		{node2, "ipv4=192.0.2.5", true},
		{star, "default-route=true", false},
		{nil, "host=shared.example", true},
		{nil, "ipv4=10.0.0.1", false},
		{&tls.ConnectionState{}, "default-route=true", false},
	} {
		ids, err := registry.ParseIdentifiers(tc.claims)
		if err != nil {
			testutil.Requires(t, !tc.ok, "%v", err)
			continue
		}
		err = claims.check(tc.who, ids)
		testutil.Holds(t, (err == nil) == tc.ok && (err == nil || codeOf(err) == codes.PermissionDenied),
			"%q: %v", tc.claims, err)
	}
}

func TestClaimsWithoutFile(t *testing.T) {
	claims := testutil.Must(NewClaims("", logging.Silent()))(t)
	g := &Gate{Claims: claims}
	state := certState(t, "n", nil, "10.0.0.1")
	testutil.Must(g.Admit(t.Context(), Peer{ID: "n", Identifiers: "ipv4=10.0.0.1", TLS: state}))(t)
	_, err := g.Admit(t.Context(), Peer{ID: "n", Identifiers: "ipv4=10.0.0.2", TLS: state})
	testutil.Holds(t, codeOf(err) == codes.PermissionDenied, "%v", err)
}

func TestIDsAreNamesOfCertificates(t *testing.T) {
	g := &Gate{OwnIDs: true}
	state := certState(t, "node-1", []string{"node-1.example", "*.pods.example"})
	state.PeerCertificates[0].URIs = []*url.URL{{Scheme: "spiffe", Host: "a.example", Path: "/agent"}}
	for id, ok := range map[string]bool{
		"node-1": true, "node-1.example": true, "spiffe://a.example/agent": true, "*.pods.example": true,
		"node-2": false, "NODE-1": false, "a.pods.example": false, "": false,
	} {
		ids, err := g.Admit(t.Context(), Peer{ID: id, Identifiers: "host=h", TLS: state})
		testutil.Holds(t, (err == nil) == ok && (len(ids.Hosts) == 1) == ok && (id == "" || ok || codeOf(err) == codes.PermissionDenied), "%q: %v", id, err)
		for _, without := range []*tls.ConnectionState{nil, {}} {
			testutil.Fails(t, testutil.Err(g.Admit(t.Context(), Peer{ID: id, TLS: without})), "%q without a certificate was admitted", id)
		}
	}
}

// A renewed certificate is the same agent's, and one with any other name is not.
func TestWhoAnAgentIs(t *testing.T) {
	state := certState(t, "node-1", []string{"a.example"}, "10.0.0.1")
	is := CertDigest(state)
	testutil.Equal(t, CertDigest(certState(t, "node-1", []string{"a.example"}, "10.0.0.1")), is, "a renewed certificate")
	for i, other := range []*tls.ConnectionState{
		nil, {}, certState(t, "node-2", []string{"a.example"}, "10.0.0.1"),
		certState(t, "node-1", []string{"b.example"}, "10.0.0.1"), certState(t, "node-1", []string{"a.example"}, "10.0.0.2"),
	} {
		testutil.Holds(t, CertDigest(other) != is && (CertDigest(other) == "") == (i < 2), "certificate %d is node-1's", i)
	}
	withToken := &Gate{Tokens: newTokens(nil)}
	testutil.Equal(t, (&Gate{}).Who(nil), "", "one that has proved nothing")
	testutil.Equal(t, withToken.Who(nil), "serviceaccount:kube-system/konnectivity-agent", "one with a token")
	testutil.Equal(t, (&Gate{}).Who(state), tunnel.NewIdentity("cn:node-1", "dns:a.example"), "one with a certificate")
	testutil.Equal(t, withToken.Who(state), tunnel.NewIdentity("cn:node-1", "dns:a.example", "serviceaccount:kube-system/konnectivity-agent"), "one with both")
}

func TestAllowFileReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "allow")
	write := func(text string) {
		testutil.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("* host=a.example")
	log, hook := test.NewNullLogger()
	claims := testutil.Must(NewClaims(file, log))(t)
	may := func(host string) bool { return claims.check(nil, registry.Identifiers{Hosts: []string{host}}) == nil }
	testutil.Requires(t, may("a.example") && !may("b.example"), "first grants")
	write("* host=b.example")
	testutil.Requires(t, !may("a.example") && may("b.example"), "changed grants")
	write("* ipv4=broken")
	testutil.Requires(t, !may("a.example") && may("b.example") && may("b.example"),
		"a broken file must leave the old grants")
	testutil.Equal(t, len(hook.AllEntries()), 1, "lines about one broken file")
	testutil.NoError(t, os.Remove(file))
	testutil.Requires(t, may("b.example"), "a missing file must leave the old grants")
	write("* host=c.example")
	testutil.Requires(t, may("c.example") && !may("b.example"), "grants after the repair")
}

func TestBrokenAllowFileAtStart(t *testing.T) {
	for text, says := range map[string]string{
		"node-1":           "line 1",
		"\n\na b c":        "line 3",
		"node-1 cidr=10/8": "cidr",
		"n " + strings.Repeat("x", registry.MaxIdentifiersText+5000): "too long",
	} {
		file := filepath.Join(t.TempDir(), "allow")
		testutil.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		testutil.ErrorSays(t, testutil.Err(NewClaims(file, logging.Silent())), says, "%.20q", text)
	}
	testutil.ErrorIs(t, testutil.Err(NewClaims("/nowhere/allow", logging.Silent())), os.ErrNotExist,
		"a file that is not there")
}

func FuzzParseGrants(f *testing.F) {
	f.Add([]byte("node-1 cidr=10.0.0.0/8&host=*.x # c\n* default-route=true"))
	f.Add([]byte("a\tb\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		grants, err := parseGrants(text)
		testutil.Requires(t, err != nil || len(grants) <= len(text), "more grants than bytes")
	})
}
