package tenant

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"reflect"
	"slices"
	"strings"

	"konnectivity/internal/admin"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/policy"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/registry"
)

// The files of a tenant beside SettingsFile: of its folder, or keys of its Secret.
const (
	AgentsCAFile  = "agents-ca.crt"  // may be missing if the agents have tokens
	ClientsCAFile = "clients-ca.crt" // needed
	CertFile      = "server.crt"     // optional, with KeyFile
	KeyFile       = "server.key"
	ListsFile     = "ca.crl"       // optional
	ReaderFile    = "reader-token" // optional
)

// Spec is one cluster of several that a server serves, as its files have it at
// one moment. It does not change, and may be used by any number of goroutines.
type Spec struct {
	Name        string
	ServerNames []string // in normal form

	ByCertificate bool // peers that ask for no tenant's name are found by their certificate

	Listen ListenSettings // its own ports and socket

	Agents  *CAs             // nil: agents show no certificate, but a token
	Clients *CAs             // never nil
	Cert    *tls.Certificate // shown to both; nil: those of the flags

	Tokens      *Tokens             // nil: agents need none
	Strategies  []registry.Strategy // nil: those of the flags
	Identifiers string              // "", NamesAny or NamesOfCertificate
	IDs         string              // "", NamesAny or NamesOfCertificate
	Policy      *policy.Policy      // nil: only that of the flags
	PolicyFile  *policyfile.File    // nil: only that of the flags
	APIServers  []string            // HOST:PORT; none: agents do not reach it
	Bounds      Bounds
	Reader      admin.TokenDigest // of the token that shows this tenant on the admin port; zero: none does
	Expiries    []Expiry          // of its CAs' files and Cert's, by Until; at least one

	readerKnown bool // Reader is as the file has it, whatever is wrong with others

	files  []string          // that were read, in this order, also those that were not there
	digest [sha256.Size]byte // of what they had
	spec   [sha256.Size]byte // of tenant.yaml
}

// Tokens says whose tokens are accepted, and who reviews them.
type Tokens struct {
	Namespace, ServiceAccount, Audience string
	API                                 kubeapi.Access
}

// Same reports whether t and o admit the same agents: the same API reviews tokens for
// the same account and audience. nil: no token is needed.
func (t *Tokens) Same(o *Tokens) bool {
	if t == nil || o == nil {
		return t == o
	}
	return t.Namespace == o.Namespace && t.ServiceAccount == o.ServiceAccount && t.Audience == o.Audience && place(t.API) == place(o.API)
}

// place stands for which API it is, whatever the server's own credentials there
// are: those are renewed.
func place(a kubeapi.Access) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %t", a.Server, a.ServerName, a.CA, a.Insecure))
}

// Equal says whether t and o are the same in every respect.
func (t *Tokens) Equal(o *Tokens) bool {
	return t.Same(o) && (t == nil || reflect.DeepEqual(t.API, o.API))
}

// CAs are those that certificates of one side must chain to. It does not
// change.
type CAs struct {
	Certs tlsreload.Certs // at least one
	many  *x509.CertPool  // the same, of more than fewCAs; else nil

	// Only are the identities of which certificates must have one, sorted and in
	// normal form; none: all count.
	Only []string

	// Lists are the revocation lists of these CAs; nil: there is no ListsFile.
	Lists *tlsreload.Lists

	// Digest is the same for the same certificates and identities in any order, and the same
	// ListsFile.
	Digest [sha256.Size]byte
}

// parse makes a tenant of its files. An error is a *FieldError, or what read
// returned. The tenant has its ServerNames even then, as far as they are known.
func parse(name string, read reader) (*Spec, error) {
	t := &Spec{Name: name}
	if err := CheckName(name); err != nil {
		return t, err
	}
	sum := sha256.New()
	hashed := func(file string) ([]byte, error) {
		data, err := read(file)
		t.files = append(t.files, file)
		addFile(sum, file, data, err)
		return data, err
	}
	readerErr := t.parseReader(hashed) // first: a token that is removed must go even if another file is wrong
	t.readerKnown = readerErr == nil
	text, err := hashed(SettingsFile)
	if err != nil {
		return t, err
	}
	t.spec = sha256.Sum256(text)
	spec, err := ParseSettings(text)
	t.ServerNames = spec.ServerNames
	if err == nil {
		err = t.fill(spec, hashed)
	}
	if err == nil {
		err = readerErr
	}
	t.digest = [sha256.Size]byte(sum.Sum(nil))
	return t, err
}

// Digest is, in 16 hexadecimal digits, the same for the same files.
func (t *Spec) Digest() string { return hex.EncodeToString(t.digest[:8]) }

// addFile adds the result of reading a file to a Spec's digest.
func addFile(to hash.Hash, file string, data []byte, err error) {
	fmt.Fprintf(to, "%s %d %t\n%s", file, len(data), err == nil, data)
}

// unchanged says whether parse would make the same tenant again: each file that it
// has read for t has what it had, or is still not there. It costs a fraction of
// parse. A nil t never is.
func (t *Spec) unchanged(read reader) bool {
	if t == nil {
		return false
	}
	now := sha256.New()
	for _, file := range t.files {
		data, err := read(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		addFile(now, file, data, err)
	}
	return [sha256.Size]byte(now.Sum(nil)) == t.digest
}

// fill sets everything but the names and the reader's token.
func (t *Spec) fill(spec Settings, read reader) (err error) {
	if name := spec.Policy.File; name != "" {
		text, err := read(name)
		if err != nil {
			return err
		}
		if t.PolicyFile, err = policyfile.ParseTenant(text); err != nil {
			return &FieldError{File: name, Err: err}
		}
	}
	t.IDs, t.Identifiers, t.Bounds, t.ByCertificate, t.Listen = spec.AgentIDs, spec.AgentIdentifiers, spec.Bounds, spec.ByCertificate, spec.Listen
	t.APIServers, t.Strategies, t.Policy = spec.APIServers, spec.order, spec.rules
	if t.Clients, err = t.parseCAs(ClientsCAFile, read); err != nil {
		return err
	}
	t.Agents, err = t.parseCAs(AgentsCAFile, read)
	if spec.Tokens != nil && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	if t.Agents.Same(t.Clients) {
		t.Agents = t.Clients // not twice in memory
	}
	if err := t.narrow(spec.Identities); err != nil {
		return err
	}
	if err := t.parseLists(read); err != nil {
		return err
	}
	if s := spec.Tokens; s != nil {
		t.Tokens = &Tokens{Namespace: s.Namespace, ServiceAccount: s.ServiceAccount, Audience: s.Audience}
		if t.Tokens.API, err = parseKubeconfig(s.Kubeconfig, read); err != nil {
			return err
		}
	}
	return t.parseCert(read)
}

// narrow restricts the tenant's CAs to certificates with its identities.
func (t *Spec) narrow(to IdentitiesSettings) error {
	if len(to.Clients) > 0 {
		t.Clients = t.Clients.narrow(to.Clients)
	}
	if len(to.Agents) == 0 {
		return nil
	}
	if t.Agents == nil {
		return fieldError("identities.agents", "there is no %s whose certificates could have them", AgentsCAFile)
	}
	t.Agents = t.Agents.narrow(to.Agents)
	return nil
}

// opened is an error if t admits more peers than was only because a file has gone since that
// was read: that is meant if tenant.yaml has changed too.
func (t *Spec) opened(was *Spec) error {
	switch {
	case was == nil || t.spec != was.spec:
		return nil
	case was.Agents != nil && t.Agents == nil:
		return &FieldError{File: AgentsCAFile, Err: fmt.Errorf("%w; to let agents in by token alone, change %s too", fs.ErrNotExist, SettingsFile)}
	case was.Clients.Lists != nil && t.Clients.Lists == nil:
		return &FieldError{File: ListsFile, Err: fmt.Errorf("%w; to admit again what it names, change %s too", fs.ErrNotExist, SettingsFile)}
	}
	return nil
}

// fewCAs is how many CAs are parsed for each handshake, in 40 µs at most. Handshakes take ten
// times as long, most tenants have one CA or two, and thousands of them would be kept parsed.
const fewCAs = 4

// Pool is the CAs as a pool.
func (c *CAs) Pool() *x509.CertPool {
	if c.many != nil {
		return c.many
	}
	return c.Certs.Pool()
}

// parseCAs reads a CA bundle.
func (t *Spec) parseCAs(file string, read reader) (*CAs, error) {
	data, err := read(file)
	if err != nil {
		return nil, err
	}
	certs, err := tlsreload.Certificates(data)
	if err != nil {
		return nil, &FieldError{File: file, Err: err}
	}
	t.expires(file, certs...)
	raw := make([][]byte, len(certs))
	for i, cert := range certs {
		raw[i] = cert.Raw
	}
	slices.SortFunc(raw, bytes.Compare)
	c := &CAs{Certs: tlsreload.CertsOf(certs), Digest: sha256.Sum256(bytes.Join(slices.CompactFunc(raw, bytes.Equal), nil))}
	if len(certs) > fewCAs {
		c.many = c.Certs.Pool()
	}
	return c, nil
}

// parseCert reads the tenant's own certificate for servers, if there is one.
func (t *Spec) parseCert(read reader) error {
	cert, err := read(CertFile)
	key, keyErr := read(KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &FieldError{File: KeyFile, Err: errors.New("a key without " + CertFile)}
	case errors.Is(keyErr, fs.ErrNotExist):
		return &FieldError{File: CertFile, Err: errors.New("a certificate without " + KeyFile)}
	case err != nil:
		return err
	case keyErr != nil:
		return keyErr
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return &FieldError{File: CertFile, Err: fmt.Errorf("with %s: %s", KeyFile, strings.TrimPrefix(err.Error(), "tls: "))}
	}
	for _, name := range t.ServerNames {
		if pair.Leaf.VerifyHostname(name) != nil {
			return &FieldError{File: CertFile, Err: fmt.Errorf("the certificate is not for %s, which is one of serverNames", name)}
		}
	}
	t.expires(CertFile, pair.Leaf)
	t.Cert = &pair
	return nil
}

// forget drops the parsed certificate, 3 KB, which only the check needs.
func (t *Spec) forget() {
	if t.Cert != nil {
		t.Cert.Leaf = nil
	}
}

// Recheck judges a peer's certificate, followed by its intermediates, that was verified
// before: it is an error unless it chains to one of the CAs and has an identity that counts,
// and tlsreload.ErrRevoked if a list names it. Its dates do not matter, as
// tlsreload.StillIssued has it. A nil CAs trusts every peer: no certificate is needed.
func (c *CAs) Recheck(chain []*x509.Certificate) error {
	switch {
	case c == nil:
		return nil
	case !tlsreload.StillIssued(chain, c.Pool()) || !c.counts(chain[0]):
		return errNotTrusted
	}
	return c.Lists.Check(chain)
}

var errNotTrusted = errors.New("the tenant trusts its certificate no more")

// Same says whether c trusts what o trusts.
func (c *CAs) Same(o *CAs) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Digest == o.Digest
}
