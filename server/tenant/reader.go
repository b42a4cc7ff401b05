package tenant

import (
	"crypto/x509"
	"errors"
	"io/fs"

	"konnectivity/internal/admin"
)

// parseReader reads the token of the tenant's readers, who see this tenant alone.
func (t *Spec) parseReader(read reader) error {
	text, err := read(ReaderFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.Reader, err = admin.ParseToken(text); err != nil {
		return &FieldError{File: ReaderFile, Err: err}
	}
	return nil
}

// Reader returns the tenant whose reader has a token; "": none, or several have it. The lookup is
// by digest, so the time that it takes reveals nothing of a token.
func (t *Table) Reader(token admin.TokenDigest) string { return t.readers[token] }

// ReaderBy returns the tenant whose clients have a certificate, followed by its
// intermediates: a client may use the tunnel, and so may see its traffic. nil: no
// tenant trusts the certificate, several do, it has identities of several, or it is revoked.
func (t *Table) ReaderBy(chain []*x509.Certificate) *Spec {
	t.indexed.Do(func() { t.readersBy = newIssuers(t.tenants, readersBy) })
	if t.readersBy == nil {
		return nil
	}
	found, err := t.readersBy.Find(chain)
	if err != nil || t.Admit(found, found.Clients, chain[0]) != nil || found.Clients.Lists.Check(chain) != nil {
		return nil
	}
	return found
}

// readersOf are the names of served tenants by the tokens of their readers.
func readersOf(entries map[string]*entry) map[admin.TokenDigest]string {
	readers := make(map[admin.TokenDigest]string)
	for name, e := range entries {
		if e.serving == nil || e.reader == (admin.TokenDigest{}) {
			continue
		}
		if _, shared := readers[e.reader]; shared {
			name = ""
		}
		readers[e.reader] = name
	}
	return readers
}
