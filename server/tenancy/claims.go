package tenancy

import (
	"errors"
	"fmt"
)

// claim is what no two tenants can have: a server name or, of those that are told
// by certificate, a CA.
type claim struct {
	key         string // the same for the same
	file, field string // where it is
	what        string // in errors, to be followed by whose it is
}

// claims are a tenant's.
func (t *Tenant) claims() []claim {
	all := make([]claim, 0, len(t.ServerNames))
	for i, name := range t.ServerNames {
		all = append(all, claim{name, SpecFile, fmt.Sprintf("serverNames[%d]", i), name + " is the name of"})
	}
	if !t.ByCertificate {
		return all
	}
	for _, side := range []struct {
		file string
		cas  *CAs
	}{{AgentsCAFile, t.Agents}, {ClientsCAFile, t.Clients}} {
		if side.cas == nil {
			continue
		}
		for _, ca := range side.cas.Certs {
			// The key, since a CA may have several certificates. It begins as no
			// server name does.
			all = append(all, claim{"\x00" + string(ca.RawSubjectPublicKeyInfo), side.file, "", fmt.Sprintf("with byCertificate, %.100q is a CA of", ca.Subject)})
		}
	}
	return all
}

// takenError says that what a tenant claims is another's.
type takenError struct{ what, owner string }

func (e *takenError) Error() string {
	return e.what + " the tenant \"" + e.owner + "\" already"
}

// taken is an error if another tenant has what t claims.
func (t *Tenant) taken(owner map[string]string) error {
	for _, c := range t.claims() {
		if other, ok := owner[c.key]; ok && other != t.Name {
			return &FieldError{File: c.file, Field: c.field, Err: &takenError{c.what, other}}
		}
	}
	return nil
}

// Conflict is a *FieldError if t claims what o has.
func (t *Tenant) Conflict(o *Tenant) error {
	owner := make(map[string]string)
	for _, c := range o.claims() {
		owner[c.key] = o.Name
	}
	return t.taken(owner)
}

// told is an error as the tenant's own reader is told it: without the name of
// another.
func told(err error) string {
	var taken *takenError
	var field *FieldError
	if errors.As(err, &taken) && errors.As(err, &field) {
		return (&FieldError{File: field.File, Field: field.Field, Err: errors.New(taken.what + " another tenant already")}).Error()
	}
	return err.Error()
}
