package tenant

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// SecretLabel is the label of tenants' Secrets, unless a server is told
	// another selector.
	SecretLabel = "konnectivity-tenant"

	// SecretPrefix begins the names of Secrets that `konnectivity certs` makes.
	// It is no part of a tenant's name.
	SecretPrefix = "konnectivity-tenant-"
)

// Secrets are those of tenants, as their API last had them. Its methods may be
// called from any goroutine, use no network and do not block.
type Secrets interface {
	// Names are the names of all, in a new slice. An error says why it is not
	// known whether they are still the same; no tenant is removed then.
	Names() ([]string, error)

	// Get is what one has, which must not be modified, and a version that changes
	// with it; "": there is no such Secret.
	Get(name string) (data map[string][]byte, version string)

	// String says where they are.
	String() string
}

// OpenSecrets takes tenants from Secrets, of which each has the files of one.
// While they cannot be listed, there are none.
func OpenSecrets(s Secrets, log logrus.FieldLogger) *Dir {
	d := newDir(secrets{s}, log)
	d.Look()
	return d
}

// LoadSecret reads what a tenant's Secret of that name has, as Load reads a
// folder.
func LoadSecret(name string, data map[string][]byte) (*Spec, error) {
	return parse(strings.TrimPrefix(name, SecretPrefix), secret{data: data}.read)
}

// secrets is a source.
type secrets struct{ Secrets }

func (secrets) kind() string { return "Secret" }

// explain names the Secret.
func (s secrets) explain(name string, err error) error {
	return fmt.Errorf("%v/%s: %w", s, s.named(name), err)
}

// list implements source.
func (s secrets) list() ([]string, error) {
	names, err := s.Names()
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, SecretPrefix)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// named is the name of a tenant's Secret. Of two, the one with the prefix counts.
func (s secrets) named(tenant string) string {
	if _, version := s.Get(SecretPrefix + tenant); version != "" {
		return SecretPrefix + tenant
	}
	return tenant
}

func (secrets) still(string, stamp, bool) bool { return false } // to open one costs nothing

func (s secrets) open(tenant string) (store, error) {
	data, version := s.Get(s.named(tenant))
	if version == "" {
		return nil, fs.ErrNotExist
	}
	return secret{data, version}, nil
}

// secret is a store, at one moment.
type secret struct {
	data    map[string][]byte
	version string
}

func (s secret) close() {}

// read implements store.
func (s secret) read(name string) ([]byte, error) {
	data, ok := s.data[name]
	switch {
	case !ok:
		return nil, &FieldError{File: name, Err: fs.ErrNotExist}
	case len(data) > maxFile:
		return nil, &FieldError{File: name, Err: fmt.Errorf("larger than %d bytes", maxFile)}
	}
	return data, nil
}

func (s secret) stamp(time.Time) (stamp, error) { return secretStamp(s.version), nil }

// secretStamp is a Secret's version, which tells all.
type secretStamp string

func (s secretStamp) same(o stamp) bool        { return s == o }
func (s secretStamp) holds(time.Duration) bool { return true }
