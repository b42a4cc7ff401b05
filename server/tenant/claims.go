package tenant

import (
	"errors"
	"fmt"
)

// claim is something that no two tenants can have: a server name, an identity, a port,
// a socket or, with byCertificate, a CA.
type claim struct {
	key         string // the same for the same
	shared      bool   // with others that claim it shared, not with an exclusive claim
	file, field string // where it is
	what        string // in errors, to be followed by whose it is
}

// claims are a tenant's; nil has none.
func (t *Spec) claims() []claim {
	if t == nil {
		return nil
	}
	all := make([]claim, 0, len(t.ServerNames))
	for i, name := range t.ServerNames {
		all = append(all, claim{key: name, file: SettingsFile, field: fmt.Sprintf("serverNames[%d]", i), what: name + " is the name of"})
	}
	all = append(all, t.Agents.claims(AgentsCAFile, "identities.agents", t.ByCertificate)...)
	all = append(all, t.Clients.claims(ClientsCAFile, "identities.clients", t.ByCertificate)...)
	return append(all, t.addressClaims()...)
}

// claims are those of the CAs in a file, and of the identities in a field.
func (c *CAs) claims(file, field string, byCertificate bool) (all []claim) {
	if c == nil {
		return nil
	}
	for _, ca := range c.Certs.Parse() {
		if byCertificate {
			what := fmt.Sprintf("with byCertificate, %.100q is a CA of", ca.Subject)
			all = append(all, claim{key: caKey(ca), shared: len(c.Only) > 0, file: file, what: what})
		}
		for _, id := range c.Only {
			all = append(all, claim{key: identityKey(ca, id), file: SettingsFile, field: field, what: fmt.Sprintf("%.300q is an identity of", id)})
		}
	}
	return all
}

// takenError says that what a tenant claims is another's; owner: "" is several, who
// share it.
type takenError struct{ what, owner string }

func (e *takenError) Error() string {
	if e.owner == "" {
		return e.what + " others already, by their identities"
	}
	return e.what + " the tenant \"" + e.owner + "\" already"
}

// owners maps the keys of claims to the tenants that have them.
type owners map[string]owner

// owner is the tenant that has a claim, or the count of those that share it.
type owner struct {
	name  string // of the tenant that has it alone
	alone int    // how many of that tenant's claims say so
	share int    // how many claims share it
}

// add has t have what it claims.
func (o owners) add(t *Spec) { o.count(t, 1) }

// remove undoes add.
func (o owners) remove(t *Spec) { o.count(t, -1) }

func (o owners) count(t *Spec, by int) {
	for _, c := range t.claims() {
		now := o[c.key]
		if c.shared {
			now.share += by
		} else {
			now.name = t.Name
			now.alone += by
		}
		if o[c.key] = now; now.alone == 0 && now.share == 0 {
			delete(o, c.key)
		}
	}
}

// taken returns an error if another tenant has a claim of t; by is without t.
func (t *Spec) taken(by owners) error {
	for _, c := range t.claims() {
		if of, ok := by[c.key]; ok && (of.alone > 0 || !c.shared) {
			if of.alone == 0 {
				of.name = ""
			}
			return &FieldError{File: c.file, Field: c.field, Err: &takenError{c.what, of.name}}
		}
	}
	return nil
}

// Conflict is a *FieldError if t claims what o has.
func (t *Spec) Conflict(o *Spec) error {
	owned := make(owners)
	if o.Name != t.Name {
		owned.add(o)
	}
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
