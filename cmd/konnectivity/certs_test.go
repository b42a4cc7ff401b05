package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/cli"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// konnectivity runs the program in process.
func konnectivity(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	status = cli.Run(root, args, &err, nil)
	return status, out.String(), err.String()
}

// succeed runs the program and ends the test if it fails. It returns its output.
func succeed(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	status, stdout, stderr := konnectivity(args...)
	testutil.Requires(t, status == 0, "%q: %d %s", args, status, stderr)
	return stdout
}

// expect runs the command and wants this status and text.
func expect(t *testing.T, status int, text string, args ...string) {
	t.Helper()
	got, stdout, stderr := konnectivity(args...)
	if said := stdout + stderr; got != status || !strings.Contains(said, text) {
		t.Errorf("%q: status %d, want %d and %q:\n%s", args, got, status, text, said)
	}
}

// load reads a pair and checks that key and certificate match.
func load(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	pair := testutil.Must(tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")))(t)
	return pair.Leaf
}

// clientAlone is the extended key usage of the certificates of agents and clients.
var clientAlone = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

func TestCertsFitTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "pki")
	status, stdout, stderr := konnectivity("certs", dir, "--server-san=proxy.test,203.0.113.7", "--cluster-san=*.agents.test",
		"--agent-san=10.0.0.9", "--lifetime=720h", "--trust-domain=prod.test")
	testutil.Requires(t, status == 0 && stderr == "", "status %d: %s", status, stderr)
	ca := load(t, dir, "ca")
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for name, want := range map[string]struct {
		names []string
		usage []x509.ExtKeyUsage
		role  pki.Role
	}{
		"server":  {[]string{"localhost", "127.0.0.1", "::1", "konnectivity-server-local", "konnectivity-server-local.kube-system.svc", "proxy.test", "203.0.113.7"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, pki.RoleServer},
		"cluster": {[]string{"localhost", "127.0.0.1", "konnectivity-server", "konnectivity-server.kube-system.svc.cluster.local", "eu.agents.test"}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, pki.RoleServer},
		"client":  {nil, clientAlone, pki.RoleClient},
		"agent":   {[]string{"10.0.0.9"}, clientAlone, pki.RoleAgent},
	} {
		leaf := load(t, dir, name)
		testutil.Succeeds(t, testutil.Err(leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: want.usage})), "%s", name)
		testutil.EqualSlices(t, leaf.ExtKeyUsage, want.usage, "what %s is for", name)
		holder := pki.Holder{Role: want.role, TrustDomain: "prod.test"}
		testutil.Equal(t, testutil.Must(pki.HolderOf(leaf))(t), holder, "%s", name)
		testutil.Contains(t, stdout, holder.URI().String(), "the summary")
		for _, n := range want.names {
			testutil.Succeeds(t, leaf.VerifyHostname(n), "%s", name)
		}
		d := time.Until(leaf.NotAfter)
		testutil.Holds(t, d >= 719*time.Hour && d <= 720*time.Hour, "%s lives %v", name, d)
		for file, mode := range map[string]os.FileMode{name + ".crt": 0o644, name + ".key": 0o600} {
			testutil.Equal(t, testutil.Must(os.Stat(filepath.Join(dir, file)))(t).Mode(), mode, "%s", file)
		}
		testutil.Contains(t, stdout, filepath.Join(dir, name+".key"), "the summary, of where the key goes")
	}
}

// A name or address that is always included, or given twice, is signed once.
func TestCertsNamesAreUnique(t *testing.T) {
	dir := t.TempDir() + "/pki"
	succeed(t, "certs", dir, "--cluster-san=127.0.0.1,Localhost,::ffff:127.0.0.1,10.0.0.1,10.0.0.1", "--agent-san=a.test,A.test")
	for name, want := range map[string]string{
		"cluster": "konnectivity-server, konnectivity-server.kube-system.svc, konnectivity-server.kube-system.svc.cluster.local, localhost, 127.0.0.1, ::1, 10.0.0.1",
		"agent":   "a.test",
	} {
		testutil.Equal(t, tlsreload.GoodFor(load(t, dir, name)), want, "%s is for", name)
	}
}

// A CA's name tells whose it is and which, and a CA that is there goes on signing
// under the name it has.
func TestCAsAreNamed(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("a", 63)
	for _, args := range [][]string{
		{dir + "/own"}, {dir + "/again"}, {dir, "--tenant=red", "--server-name=red.test"}, {dir, "--tenant=" + long, "--server-name=long.test"},
		{dir, "--tenant=old", "--server-name=old.test", "--from=" + dir + "/own"},
	} {
		succeed(t, append([]string{"certs"}, args...)...)
	}
	signer := func(folder string) string { return load(t, filepath.Join(dir, folder), "agent").Issuer.CommonName }
	for folder, want := range map[string]string{
		"own": "konnectivity-signer", "again": "konnectivity-signer", "clusters/red": "konnectivity-tenant-red",
		"clusters/" + long: "konnectivity-tenant-" + long[:35],
	} {
		if got := signer(folder); !regexp.MustCompile("^" + want + "@[0-9a-f]{8}$").MatchString(got) {
			t.Errorf("%s is signed by %q, want %q and a number", folder, got, want)
		}
	}
	testutil.Holds(t, signer("own") != signer("again"), "two CAs are called %q", signer("own"))
	testutil.Equal(t, signer("clusters/old"), signer("own"), "a CA that was there signs as")
}

func TestCertsNeverOverwrites(t *testing.T) {
	dir := t.TempDir()
	testutil.NoError(t, os.WriteFile(filepath.Join(dir, "agent.key"), []byte("precious"), 0o600))
	expect(t, 1, "agent.key exists already", "certs", dir)
	testutil.Equal(t, len(testutil.Must(os.ReadDir(dir))(t)), 1, "files, of which half a PKI would be some")
	testutil.Equal(t, string(testutil.Must(os.ReadFile(filepath.Join(dir, "agent.key")))(t)), "precious", "the key")
}

// An expired CA signs nothing.
func TestCertsOfExpiredCA(t *testing.T) {
	ca := testutil.Must(pki.NewCAFor("old", -time.Hour))(t)
	from, dir := t.TempDir(), filepath.Join(t.TempDir(), "pki")
	testutil.NoError(t, errors.Join(pki.WriteCert(filepath.Join(from, "ca.crt"), ca.CertPEM), pki.WriteKey(filepath.Join(from, "ca.key"), ca.KeyPEM)))
	for _, args := range [][]string{{"certs", dir}, {"certs", dir, "--tenant=a", "--server-name=a.test"}} {
		status, stdout, stderr := konnectivity(append(args, "--from="+from)...)
		testutil.Holds(t, status == 1 && stdout == "" && strings.Contains(stderr, filepath.Join(from, "ca.crt")) &&
			strings.Contains(stderr, "expired"), "%v: status %d, %q, %q", args, status, stdout, stderr)
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%v: something was written", args)
			_ = os.RemoveAll(dir)
		}
	}
	expect(t, 1, "expired", "certs", dir, "--lifetime=1ns") // over as they are made
}

// A file that cannot be read or written is named.
func TestCertsFileErrors(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{"ca.crt": {dir + "/pki", "--from=" + dir}, "/proc/no": {"/proc/no/pki"}} {
		status, _, stderr := konnectivity(append([]string{"certs"}, args...)...)
		testutil.Holds(t, status == cli.ExitFailure && strings.Contains(stderr, want) && strings.Count(stderr, "\n") == 1,
			"%v: %d %q", args, status, stderr)
	}
	testutil.Equal(t, len(testutil.Must(os.ReadDir(dir))(t)), 0, "files that were written")
}

func TestCertsForKubernetes(t *testing.T) {
	dir := t.TempDir()
	stdout := succeed(t, "certs", dir, "--kubernetes", "--namespace=clusters-a")
	for file, want := range map[string]map[string]string{
		"kubernetes-control-plane.yaml": {
			"konnectivity-signer": "clusters-a", "konnectivity-server": "clusters-a", "konnectivity-cluster": "clusters-a",
			"konnectivity-client": "clusters-a", "konnectivity-agent": "clusters-a", "konnectivity-ca-bundle": "clusters-a",
		},
		"kubernetes-data-plane.yaml": {"konnectivity-agent": "kube-system", "konnectivity-ca-bundle": "kube-system"},
	} {
		path := filepath.Join(dir, file)
		testutil.Equal(t, testutil.Must(os.Stat(path))(t).Mode(), 0o600, "%s holds keys: its mode", file)
		testutil.Contains(t, stdout, "kubectl apply -f "+path, "the summary")
		data := testutil.Must(os.ReadFile(path))(t)
		checkObjects(t, dir, data, want)
	}
	testutil.NoError(t, load(t, dir, "server").VerifyHostname("konnectivity-server-local.clusters-a.svc"))
}

// checkObjects decodes documents strictly and compares them with the files.
func checkObjects(t *testing.T, dir string, data []byte, want map[string]string) {
	t.Helper()
	ca := testutil.Must(os.ReadFile(filepath.Join(dir, "ca.crt")))(t)
	documents := strings.Split(strings.TrimPrefix(string(data), "---\n"), "\n---\n")
	testutil.Equal(t, len(documents), len(want), "objects")
	for _, d := range documents {
		var s corev1.Secret
		var m corev1.ConfigMap
		if strings.Contains(d, "kind: ConfigMap") {
			if err := yaml.UnmarshalStrict([]byte(d), &m); err != nil || want[m.Name] != m.Namespace || m.Data["ca.crt"] != string(ca) {
				t.Errorf("%s/%s: %v", m.Namespace, m.Name, err)
			}
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(d), &s); err != nil || want[s.Name] != s.Namespace || !bytes.Equal(s.Data["ca.crt"], ca) {
			t.Errorf("%s/%s: %v", s.Namespace, s.Name, err)
		}
		if s.Name == "konnectivity-signer" {
			_, err := tls.X509KeyPair(s.Data["ca.crt"], s.Data["ca.key"])
			testutil.Holds(t, err == nil, "%v", err)
		} else if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil || s.Type != corev1.SecretTypeTLS {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
}
