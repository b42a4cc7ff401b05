package tlsreload

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// FileError says which of the Files is faulty, and why.
type FileError struct {
	What string // "certificate", "private key", "CA certificate", "CA bundle"
	Path string
	Err  error // errors.Is(err, fs.ErrNotExist) tells a missing file

	Mismatch bool // the key can be read but does not belong to the certificate
}

// Error is a sentence that names the file.
func (e *FileError) Error() string { return fmt.Sprintf("%s file %s: %v", e.What, e.Path, e.Err) }

// Unwrap is Err.
func (e *FileError) Unwrap() error { return e.Err }

// ErrNoCertificate says that a file has no certificate.
var ErrNoCertificate = errors.New("no PEM certificate in it")

// TrustedCAs reads the certificates of Files.CA, for callers that inspect what
// a Source would trust. An error is a *FileError.
func (f Files) TrustedCAs() ([]*x509.Certificate, error) {
	ca, err := readFile(f.CA, caCertificate)
	if err != nil {
		return nil, err
	}
	return ca.certificates()
}

// Chain reads the certificates of Files.Cert, of which the first belongs to
// Files.Key, for callers that inspect what a Source would present. An error is a
// *FileError.
func (f Files) Chain() ([]*x509.Certificate, error) {
	cert, key, err := f.readPair()
	if err != nil {
		return nil, err
	}
	chain, err := cert.certificates()
	if err != nil {
		return nil, err
	}
	if _, err := tls.X509KeyPair(cert.data, key.data); err != nil {
		return nil, &FileError{What: privateKey, Path: f.Key, Err: tidy(err), Mismatch: true}
	}
	return chain, nil
}

// readPair reads the certificate and its key.
func (f Files) readPair() (cert, key blob, err error) {
	if cert, err = readFile(f.Cert, certificate); err == nil {
		key, err = readFile(f.Key, privateKey)
	}
	return cert, key, err
}

// certificates is Certificates of the file; an error is a *FileError.
func (b blob) certificates() ([]*x509.Certificate, error) {
	certs, err := Certificates(b.data)
	if err != nil {
		err = &FileError{What: b.what, Path: b.path, Err: err}
	}
	return certs, err
}

// Certificates parses as many of the certificates in a PEM text as possible. An error is about the
// first that cannot be parsed, about one that is not whole, or about there being none.
func Certificates(text []byte) (certs []*x509.Certificate, broken error) {
	blocks, err := pemBlocks(text)
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			broken = cmp.Or(broken, tidy(err))
			continue
		}
		certs = append(certs, cert)
	}
	if err == nil && len(certs) == 0 {
		err = ErrNoCertificate
	}
	return certs, cmp.Or(broken, err)
}

// whole is an error if a PEM block of the file is not whole. It parses no certificate: peers may
// know what Go does not, such as the curve of an issuer's key.
func (b blob) whole() error {
	if _, err := pemBlocks(b.data); err != nil {
		return &FileError{What: b.what, Path: b.path, Err: err}
	}
	return nil
}

var errCut = errors.New("not all that begins with -----BEGIN is a whole PEM block; is the file cut short?")

// pemBlocks decodes the PEM blocks of a text. It is an error if more begin there than are whole:
// pem.Decode leaves out a block that is cut short, and the peers of a CA that is left out would be
// refused.
func pemBlocks(text []byte) (blocks []*pem.Block, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	if len(blocks) != bytes.Count(append([]byte("\n"), text...), []byte("\n-----BEGIN")) {
		return blocks, errCut
	}
	return blocks, nil
}
