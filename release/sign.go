package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// key makes signatures in cosign's format: ECDSA on P-256 over a SHA-256 digest.
type key struct{ private *ecdsa.PrivateKey }

// readKey reads a PEM file: SEC 1, PKCS #8, or what cosign generate-key-pair writes, whose
// password is in COSIGN_PASSWORD.
func readKey(path string) (*key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	parsed, err := cryptoutils.UnmarshalPEMToPrivateKey(text, func(bool) ([]byte, error) { return []byte(os.Getenv("COSIGN_PASSWORD")), nil })
	private, ok := parsed.(*ecdsa.PrivateKey)
	if err == nil && (!ok || private.Curve != elliptic.P256()) {
		err = errors.New("not of ECDSA on P-256")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: give a private key of ECDSA on P-256, or cosign's with its password in COSIGN_PASSWORD", path, err)
	}
	return &key{private}, nil
}

// Sign returns a signature in ASN.1: the same for the same data, as RFC 6979 has it.
func (k *key) Sign(_ context.Context, data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return k.private.Sign(nil, sum[:], crypto.SHA256)
}

// KeyID is empty: who verifies knows the key.
func (k *key) KeyID() (string, error) { return "", nil }

// sign signs the checksums, and the provenance in an envelope.
func (r *release) sign() error {
	if r.key == nil {
		fmt.Println("no key is given, and so nothing is signed: make release KEY=cosign.key does")
		return nil
	}
	ctx := context.Background()
	sums := filepath.Join(r.out, checksumsName)
	text, err := os.ReadFile(sums)
	if err != nil {
		return err
	}
	signature, err := r.key.Sign(ctx, text)
	if err != nil {
		return err
	}
	if err := os.WriteFile(sums+".sig", []byte(base64.StdEncoding.EncodeToString(signature)), 0o644); err != nil {
		return err
	}
	made, err := os.ReadFile(r.provenanceFile())
	if err != nil {
		return err
	}
	signer, err := dsse.NewEnvelopeSigner(r.key)
	if err != nil {
		return err
	}
	envelope, err := signer.SignPayload(ctx, payloadType, made)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(envelope); err != nil {
		return err
	}
	return os.WriteFile(r.file("provenance.intoto.jsonl"), append(text, '\n'), 0o644)
}
