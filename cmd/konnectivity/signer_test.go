package main

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// While a CA is replaced (docs/operations.md), the signer's file has two. The first one signs,
// and both are published.
func TestSignerBetweenTwoCAs(t *testing.T) {
	before, after := testutil.Must(pki.NewCA("agents"))(t), testutil.Must(pki.NewCA("agents"))(t)
	for step, order := range [][2]*pki.CA{{before, after}, {after, before}} {
		dir := t.TempDir()
		file, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
		both := slices.Concat(order[0].CertPEM, order[1].CertPEM)
		testutil.NoError(t, os.WriteFile(file, both, 0o600))
		testutil.NoError(t, os.WriteFile(key, order[0].KeyPEM, 0o600))
		f := &signerFlags{}
		f.ca.Cert, f.ca.Key, f.ca.CA = file, key, file
		testutil.Equal(t, testutil.Must(f.published())(t), string(both), "step %d: published", step+1)
		ca := testutil.Must(pki.CAOf(testutil.Must(tls.LoadX509KeyPair(file, key))(t)))(t)
		testutil.Equal(t, ca.Certificate().Equal(order[0].Certificate()), true, "step %d: the first signs", step+1)
		chain := testutil.Must(ca.Sign(ca.Certificate().PublicKey, pki.Leaf{CommonName: "node-1", Client: true}))(t)
		testutil.Equal(t, bytes.Count(chain, []byte("BEGIN CERTIFICATE")), 1, "step %d: certificates of a chain", step+1)
		leaf := testutil.Must(ca.Issue(pki.Leaf{CommonName: "node-1", Client: true}))(t)
		testutil.NoError(t, os.WriteFile(file, slices.Concat(both, order[1].CertPEM), 0o600))
		testutil.Equal(t, testutil.Must(f.published())(t), string(both), "step %d: published of one that is there twice", step+1)
		testutil.NoError(t, os.WriteFile(file, slices.Concat(both, leaf.CertPEM), 0o600))
		testutil.ErrorSays(t, testutil.Err(f.published()), "of node-1 is not a CA's", "one of an agent")
	}
}
