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

// claims are a tenant's; nil has none.
func (t *Tenant) claims() []claim {
	if t == nil {
		return nil
	}
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

// owners are the names of the tenants that have what is claimed, by its key.
type owners map[string]string

// add has t have what it claims.
func (o owners) add(t *Tenant) {
	for _, c := range t.claims() {
		o[c.key] = t.Name
	}
}

// remove undoes add.
func (o owners) remove(t *Tenant) {
	for _, c := range t.claims() {
		delete(o, c.key)
	}
}

// taken is an error if another tenant has what t claims.
func (t *Tenant) taken(by owners) error {
	for _, c := range t.claims() {
		if other, ok := by[c.key]; ok && other != t.Name {
			return &FieldError{File: c.file, Field: c.field, Err: &takenError{c.what, other}}
		}
	}
	return nil
}

// Conflict is a *FieldError if t claims what o has.
func (t *Tenant) Conflict(o *Tenant) error {
	owned := make(owners)
	owned.add(o)
	return t.taken(owned)
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
