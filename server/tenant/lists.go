package tenant

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"konnectivity/internal/tlsreload"
)

// parseLists reads the revocation lists of the tenant's CAs, if there is a file of them. Each
// counts for the side whose CA has signed it, so that neither side revokes the other's.
func (t *Spec) parseLists(read reader) error {
	data, err := read(ListsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var ofAgents []*x509.Certificate
	if t.Agents != nil {
		ofAgents = t.Agents.Certs.Parse()
	}
	lists, err := tlsreload.ParseLists(data, t.Clients.Certs.Parse(), ofAgents)
	if err != nil {
		return &FieldError{File: ListsFile, Err: err}
	}
	one := t.Agents == t.Clients
	t.Clients = t.Clients.revoke(lists[0], data)
	switch {
	case one:
		t.Agents = t.Clients // not twice in memory
	case t.Agents != nil:
		t.Agents = t.Agents.revoke(lists[1], data)
	}
	return nil
}

// revoke has certificates not count that the lists of a file name.
func (c *CAs) revoke(lists *tlsreload.Lists, file []byte) *CAs {
	with := *c
	with.Lists, with.Digest = lists, sha256.Sum256(fmt.Appendf(nil, "%x %x", c.Digest, sha256.Sum256(file)))
	return &with
}

// ListsUntil is when the first of the tenant's revocation lists is to be replaced; zero: it
// has none, or none says so.
func (t *Spec) ListsUntil() (first time.Time) {
	for _, side := range []*CAs{t.Agents, t.Clients} {
		if side == nil || side.Lists == nil {
			continue
		}
		if until := side.Lists.Until; first.IsZero() || !until.IsZero() && until.Before(first) {
			first = until
		}
	}
	return first
}
