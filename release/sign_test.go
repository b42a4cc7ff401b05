package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	sigstore "github.com/sigstore/sigstore/pkg/signature/dsse"
)

// Everything that is signed is verified by the libraries that cosign is made of, with
// each kind of key; a changed byte is noticed.
func TestSignatures(t *testing.T) {
	for name, encode := range keyFiles {
		t.Run(name, func(t *testing.T) {
			t.Setenv("COSIGN_PASSWORD", "secret")
			private := newKey(t, elliptic.P256())
			r := signed(t, encode(t, private))
			checkSignatures(t, r.out, &private.PublicKey)
		})
	}
}

// keyFiles are the kinds of files that hold a key.
var keyFiles = map[string]func(*testing.T, *ecdsa.PrivateKey) []byte{
	"SEC 1": func(t *testing.T, k *ecdsa.PrivateKey) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(k))(t)})
	},
	"PKCS 8": func(t *testing.T, k *ecdsa.PrivateKey) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(k))(t)})
	},
	"cosign": func(t *testing.T, k *ecdsa.PrivateKey) []byte {
		sealed := must(encrypted.Encrypt(must(x509.MarshalPKCS8PrivateKey(k))(t), []byte("secret")))(t)
		return pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: sealed})
	},
}

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	return must(ecdsa.GenerateKey(curve, rand.Reader))(t)
}

// signed is a release of one file that is complete from its provenance on.
func signed(t *testing.T, keyFile []byte) *release {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	noError(t, os.WriteFile(path, keyFile, 0o600))
	r := &release{out: t.TempDir(), version: "v1.0.0", commit: "abc", time: time.Unix(1, 0), systems: []system{{"linux", "arm"}}}
	if keyFile != nil {
		r.key = must(readKey(path))(t)
	}
	noError(t, os.WriteFile(r.file("linux_arm.tar.gz"), []byte("an archive"), 0o644))
	for _, step := range []func() error{r.provenance, r.checksums, r.sign} {
		noError(t, step())
	}
	return r
}

// checkSignatures verifies a release's, and that its provenance is about its files.
func checkSignatures(t *testing.T, folder string, public crypto.PublicKey) {
	t.Helper()
	verifier := must(signature.LoadVerifier(public, crypto.SHA256))(t)
	sums := must(os.ReadFile(filepath.Join(folder, checksumsName)))(t)
	sig := must(base64.StdEncoding.DecodeString(string(must(os.ReadFile(filepath.Join(folder, checksumsName+".sig")))(t))))(t)
	if err := verifier.VerifySignature(bytes.NewReader(sig), bytes.NewReader(sums)); err != nil {
		t.Errorf("the checksums: %v", err)
	}
	if err := verifier.VerifySignature(bytes.NewReader(sig), bytes.NewReader(append(sums, ' '))); err == nil {
		t.Error("other checksums are taken for these")
	}
	files := must(filepath.Glob(filepath.Join(folder, "*_provenance.intoto.jsonl")))(t)
	requires(t, len(files) == 1, "envelopes: %q", files)
	text := must(os.ReadFile(files[0]))(t)
	if err := sigstore.WrapVerifier(verifier).VerifySignature(bytes.NewReader(text), nil); err != nil {
		t.Errorf("the provenance: %v", err)
	}
	var envelope struct{ Payload []byte }
	decode(t, string(text), &envelope)
	checkStatement(t, folder, envelope.Payload)
}

// checkStatement compares a provenance with what it is about.
func checkStatement(t *testing.T, folder string, text []byte) {
	t.Helper()
	var s struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []resource
		Predicate     struct {
			BuildDefinition struct{ ResolvedDependencies []resource }
			RunDetails      struct{ Builder struct{ ID string } }
		}
	}
	decode(t, string(text), &s)
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" ||
		s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] == "" || s.Predicate.RunDetails.Builder.ID != makeRelease {
		t.Errorf("%s", text)
	}
	subjects := map[string]string{}
	for _, subject := range s.Subject {
		subjects[subject.Name] = subject.Digest["sha256"]
	}
	entries := must(os.ReadDir(folder))(t)
	for _, f := range entries {
		if f.IsDir() || f.Name() == checksumsName || strings.Contains(f.Name(), "_provenance.") || strings.HasSuffix(f.Name(), ".sig") {
			continue
		}
		equal(t, subjects[f.Name()], must(sumOf(filepath.Join(folder, f.Name())))(t),
			"the sum of %s in the provenance", f.Name())
	}
	if _, err := os.Stat(filepath.Join(folder, "oci", "konnectivity")); err == nil && subjects["oci/konnectivity"] == "" {
		t.Errorf("the image is not in the provenance: %v", subjects)
	}
}

// Without a key there is no signature, and a key changes no other byte.
func TestSignaturesAreAllThatAKeyAdds(t *testing.T) {
	contents := func(r *release) map[string]string {
		files := map[string]string{}
		for _, f := range must(os.ReadDir(r.out))(t) {
			files[f.Name()] = string(must(os.ReadFile(filepath.Join(r.out, f.Name())))(t))
		}
		return files
	}
	encoded := keyFiles["PKCS 8"](t, newKey(t, elliptic.P256()))
	bare, once, twice := contents(signed(t, nil)), contents(signed(t, encoded)), contents(signed(t, encoded))
	holds(t, len(bare) == 3 && len(once) == 5,
		"%d files without a key and %d with one, want 3 and 5", len(bare), len(once))
	for name, text := range bare {
		equal(t, once[name], text, "%s with a key", name)
	}
	for name, text := range once {
		equal(t, twice[name], text, "%s once more", name)
	}
}

func TestKeysThatCannotSign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"no PEM":         {[]byte("key"), "PEM decoding failed"},
		"a public key":   {must(cryptoutils.MarshalPublicKeyToPEM(newKey(t, elliptic.P256()).Public()))(t), "PEM file type: PUBLIC KEY"},
		"another curve":  {keyFiles["SEC 1"](t, newKey(t, elliptic.P384())), "not of ECDSA on P-256"},
		"wrong password": {keyFiles["cosign"](t, newKey(t, elliptic.P256())), "decryption failed"},
	} {
		noError(t, os.WriteFile(path, c.file, 0o600))
		t.Setenv("COSIGN_PASSWORD", "another")
		if _, err := readKey(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The commands of docs/install.md verify a release, by no more than OpenSSL.
func TestVerifyByTheDocument(t *testing.T) {
	sums := artefact(t, checksumsName)
	folder := t.TempDir()
	command(t, "cp", sums, artefact(t, checksumsName+".sig"), folder)
	public := must(os.ReadFile(strings.TrimSuffix(*signingKey, ".key") + ".pub"))(t)
	noError(t, os.WriteFile(filepath.Join(folder, "cosign.pub"), public, 0o600))
	ran := 0
	for _, block := range plainBlock.FindAllStringSubmatch(string(must(os.ReadFile("../docs/install.md"))(t)), -1) {
		if strings.Contains(block[1], "openssl dgst") {
			ran++
			command(t, "sh", "-euc", "cd "+folder+"; "+block[1])
		}
	}
	equal(t, ran, 1, "blocks that verify")
	checkSignatures(t, *dist, must(cryptoutils.UnmarshalPEMToPublicKey(public))(t))
}
