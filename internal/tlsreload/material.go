package tlsreload

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"konnectivity/internal/files"
)

// maxFile bounds the size of one file. The largest bundles in use (all
// public CAs, several times over) are far smaller.
const maxFile = 16 << 20

// digest is the content of all files of a Source, hashed.
type digest [sha256.Size]byte

// material is one consistent reading of the files; immutable, but for its sessions.
type material struct {
	digest digest
	cert   *tls.Certificate             // nil without Files.Cert
	pool   *x509.CertPool               // nil without CA files
	cas    []*x509.Certificate          // those of the pool that the files have
	lists  *Lists                       // nil without Files.CRL
	first  map[string]*x509.Certificate // the certificate that expires first, for each file that was not found in a directory

	leftOut []error // faults of files in directories

	sessions tls.ClientSessionCache // of clients that have used it
}

// What files are, in errors.
const (
	certificate   = "certificate"
	privateKey    = "private key"
	caCertificate = "CA certificate"
	caBundle      = "CA bundle"
	revocations   = "revocation list"
)

// blob is one file's content.
type blob struct {
	path string
	what string // in errors
	data []byte

	listed bool  // found in a directory, not named by itself
	err    error // why it could not be read; only if listed
}

// contents are the files as read, before parsing.
type contents struct {
	cert, key, crl blob
	cas            []blob
}

// read reads all files.
func read(files Files) (contents, error) {
	var c contents
	var err error
	if files.Cert != "" {
		if c.cert, c.key, err = files.readPair(); err != nil {
			return c, err
		}
	}
	if files.CA != "" {
		ca, err := readFile(files.CA, caCertificate)
		if err != nil {
			return c, err
		}
		c.cas = append(c.cas, ca)
	}
	for _, path := range files.MoreCAs {
		more, err := readBundle(path)
		if err != nil {
			return c, err
		}
		c.cas = append(c.cas, more...)
	}
	if files.CRL != "" {
		c.crl, err = readFile(files.CRL, revocations)
	}
	return c, err
}

// readFile reads one file that must exist; what names it in errors.
func readFile(path, what string) (blob, error) {
	data, err := files.Read(path, maxFile)
	if err != nil {
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathError.Err // whose text would repeat the path
		}
		return blob{}, &FileError{What: what, Path: path, Err: err}
	}
	return blob{path: path, what: what, data: data}, nil
}

// readBundle reads a file or every *.crt and *.pem of a directory. What does
// not exist is empty. If a file of a directory cannot be read, the others still
// count: it may have nothing to do with us.
func readBundle(path string) ([]blob, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !info.IsDir() {
		b, err := readFile(path, caBundle)
		return []blob{b}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("CA directory %s: %w", path, err)
	}
	var all []blob
	for _, e := range entries {
		ext := strings.ToLower(filepath.Ext(e.Name()))
		if ext != ".crt" && ext != ".pem" {
			continue
		}
		b, err := readFile(filepath.Join(path, e.Name()), caBundle)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile, or a link to nowhere
		}
		if err != nil {
			all = append(all, blob{path: filepath.Join(path, e.Name()), listed: true, err: err})
			continue
		}
		b.listed = true
		if !bytes.Contains(b.data, []byte("-----BEGIN CERTIFICATE-----")) {
			continue // distributions keep other formats beside their bundles
		}
		all = append(all, b)
	}
	return all, nil
}

// digest hashes names, lengths and bytes.
func (c contents) digest() digest {
	h := sha256.New()
	for _, b := range append([]blob{c.cert, c.key, c.crl}, c.cas...) {
		fmt.Fprintf(h, "%s %d\n", b.path, len(b.data))
		h.Write(b.data)
	}
	return digest(h.Sum(nil))
}

// parse turns contents into material.
func (c contents) parse(systemRoots bool) (*material, error) {
	m := &material{digest: c.digest(), first: map[string]*x509.Certificate{}, sessions: tls.NewLRUClientSessionCache(clientSessions)}
	if c.cert.path != "" {
		pair, err := tls.X509KeyPair(c.cert.data, c.key.data)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with private key %s: %w", c.cert.path, c.key.path, tidy(err))
		}
		if err := c.cert.whole(); err != nil {
			return nil, err
		}
		m.cert = &pair
		m.first[c.cert.path] = pair.Leaf
	}
	if len(c.cas) == 0 {
		return m, m.addLists(c.crl)
	}
	m.pool = x509.NewCertPool()
	if systemRoots {
		if pool, err := x509.SystemCertPool(); err == nil {
			m.pool = pool
		}
	}
	for _, ca := range c.cas {
		err := m.addCA(ca)
		if err != nil && !ca.listed {
			return nil, err
		}
		if err != nil {
			m.leftOut = append(m.leftOut, err)
		}
	}
	return m, m.addLists(c.crl)
}

// addCA adds every certificate of one file to the pool. An error names one
// that was not added.
func (m *material) addCA(ca blob) error {
	if ca.err != nil {
		return ca.err
	}
	certs, err := ca.certificates()
	m.cas = append(m.cas, certs...)
	for _, cert := range certs {
		m.pool.AddCert(cert)
		if ca.listed {
			continue // this operator cannot renew those of a distribution
		}
		if first := m.first[ca.path]; first == nil || cert.NotAfter.Before(first.NotAfter) {
			m.first[ca.path] = cert
		}
	}
	return err
}

// addLists adds the revocation lists of a file, if there is one.
func (m *material) addLists(file blob) error {
	if file.path == "" {
		return nil
	}
	lists, err := ParseLists(file.data, m.cas)
	if err != nil {
		return &FileError{What: file.what, Path: file.path, Err: err}
	}
	m.lists = lists[0]
	return nil
}

// tidy removes the package prefixes from errors of crypto.
func tidy(err error) error {
	text := err.Error()
	for _, prefix := range []string{"tls: ", "x509: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return errors.New(text)
}
