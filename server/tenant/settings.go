package tenant

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"konnectivity/internal/policy"
	"konnectivity/internal/policyfile"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

// Settings is tenant.yaml. All but ServerNames may be left out, and these where Listen has
// a place for agents and one for clients.
type Settings struct {
	// ServerNames are the names that the tenant's agents and clients send in the TLS
	// handshake (SNI). No other tenant has them.
	ServerNames []string `json:"serverNames"`

	// ByCertificate has peers that ask for no tenant's name found by the CA of
	// their certificate.
	ByCertificate bool `json:"byCertificate,omitempty"`

	// Identities are names. The tenant's certificates have one of them at least, so that
	// several tenants may share a CA.
	Identities IdentitiesSettings `json:"identities,omitzero"`

	// Listen has ports and sockets of the tenant alone.
	Listen ListenSettings `json:"listen,omitzero"`

	// Tokens has agents authenticate by token, which the tenant's own API
	// reviews.
	Tokens *TokensSettings `json:"tokens,omitempty"`

	// Strategies are as --proxy-strategies; none: those of the flag.
	Strategies []string `json:"strategies,omitempty"`

	// AgentIDs is as --agent-id-policy, AgentIdentifiers as --agent-identifier-policy:
	// "any" or "certificate"; "": as the flag has it.
	AgentIDs         string `json:"agentIDs,omitempty"`
	AgentIdentifiers string `json:"agentIdentifiers,omitempty"`

	// APIServers are HOST:PORT of the tenant's Kubernetes API server, as its agents reach
	// it through the server; none: they do not.
	APIServers []string `json:"apiServers,omitempty"`

	Policy PolicySettings `json:"policy,omitzero"`
	Bounds Bounds         `json:"bounds,omitzero"`

	order []registry.Strategy // Strategies, as check has parsed them
	rules *policy.Policy      // those of Policy, as check has parsed them; nil: none
}

// IdentitiesSettings are the names of each side: URIs, DNS names, or common names after
// "CN="; none: all that its CA has issued is the tenant's.
type IdentitiesSettings struct {
	Agents  []string `json:"agents,omitempty"`
	Clients []string `json:"clients,omitempty"`
}

// TokensSettings says whose tokens are accepted, and who reviews them.
type TokensSettings struct {
	Kubeconfig     string `json:"kubeconfig"`     // a file of the folder
	Namespace      string `json:"namespace"`      // of the agents' service account
	ServiceAccount string `json:"serviceAccount"` // its name
	Audience       string `json:"audience"`       // that tokens must have
}

// PolicySettings has rules as --allow-destination, --deny-destination and --policy-file,
// which hold as well.
type PolicySettings struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	File  string   `json:"file,omitempty"` // a policy file of the folder, which holds as well
}

// Bounds are what a tenant may use of one server; 0 is no bound.
type Bounds struct {
	Connections    int `json:"connections,omitempty"`    // open at once
	DialsPerSecond int `json:"dialsPerSecond,omitempty"` // with a burst of as many
	MemoryMiB      int `json:"memoryMiB,omitempty"`      // of --memory-budget-mib
	MbitPerSecond  int `json:"mbitPerSecond,omitempty"`  // of payload, in each direction: megabits, of 125,000 bytes
}

// BytesPerSecond is MbitPerSecond in bytes.
func (b Bounds) BytesPerSecond() int64 { return int64(b.MbitPerSecond) * 125_000 }

// The values of AgentIDs and AgentIdentifiers.
const (
	NamesAny           = "any"
	NamesOfCertificate = "certificate"
)

// SettingsFile is the name of a tenant's settings in its folder.
const SettingsFile = "tenant.yaml"

// maxNames bounds a tenant's server names. A handful is usual.
const maxNames = 64

// FieldError is an error in a file of a tenant's folder, with its place.
type FieldError struct {
	File  string // such as "tenant.yaml"
	Field string // such as "bounds.connections"; "": the file as a whole
	Err   error
}

// maxReason bounds an error's text, in bytes: it may quote the file, and list every line that
// is wrong.
const maxReason = 1 << 10

// Error is a sentence that names file and field.
func (e *FieldError) Error() string {
	reason := e.Err.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	if e.Field == "" {
		return e.File + ": " + reason
	}
	return e.File + ": " + e.Field + ": " + reason
}

// Unwrap is Err.
func (e *FieldError) Unwrap() error { return e.Err }

func fieldError(field, format string, args ...any) error {
	return &FieldError{File: SettingsFile, Field: field, Err: fmt.Errorf(format, args...)}
}

// ParseSettings reads tenant.yaml. Server names are in lower case and without a
// trailing dot in what it returns. An error is a *FieldError; the Settings is
// usable for its names even then, as far as they could be read.
func ParseSettings(text []byte) (Settings, error) {
	var s Settings
	if err := decodeStrict(SettingsFile, text, &s); err != nil {
		return Settings{ServerNames: namesAtLeast(text)}, err
	}
	err := s.normalise()
	if err == nil {
		err = s.check()
	}
	return s, err
}

// maxYAML bounds a file that is decoded, in bytes. Some take 226 bytes of memory for each
// of theirs, and no other tenant's change is in force meanwhile.
const maxYAML = 256 << 10

// decodeStrict decodes YAML in which every field is known and given once.
func decodeStrict(file string, text []byte, into any) error {
	if field, err := policyfile.DecodeYAML(text, maxYAML, into); err != nil {
		return &FieldError{File: file, Field: field, Err: err}
	}
	return nil
}

// namesAtLeast are the server names of settings that are wrong elsewhere.
func namesAtLeast(text []byte) (names []string) {
	if len(text) > maxYAML {
		return nil
	}
	var only struct {
		ServerNames []string `json:"serverNames"`
	}
	if yaml.Unmarshal(text, &only) != nil {
		return nil
	}
	for _, name := range only.ServerNames {
		if name = tunnel.CanonicalHost(name); validName(name) == nil && len(names) < maxNames {
			names = append(names, name)
		}
	}
	return names
}

// normalise brings names into one spelling.
func (s *Settings) normalise() error {
	if err := s.normaliseNames(); err != nil {
		return err
	}
	if err := normaliseIdentities("identities.agents", s.Identities.Agents); err != nil {
		return err
	}
	return normaliseIdentities("identities.clients", s.Identities.Clients)
}

func normaliseIdentities(field string, all []string) (err error) {
	if len(all) > maxIdentities {
		return fieldError(field, "%d identities, and at most %d are accepted", len(all), maxIdentities)
	}
	for i, text := range all {
		if all[i], err = parseIdentity(text); err != nil {
			return fieldError(fmt.Sprintf("%s[%d]", field, i), "%w", err)
		}
	}
	return nil
}

func (s *Settings) normaliseNames() error {
	seen := make(map[string]bool)
	names := make([]string, 0, len(s.ServerNames))
	for i, name := range s.ServerNames {
		name = tunnel.CanonicalHost(name)
		if err := validName(name); err != nil {
			return fieldError(fmt.Sprintf("serverNames[%d]", i), "%w", err)
		}
		if !seen[name] {
			names = append(names, name)
		}
		seen[name] = true
	}
	s.ServerNames = names
	return nil
}

func (s *Settings) check() error {
	switch n := len(s.ServerNames); {
	case n == 0 && !s.Listen.whole():
		return fieldError("serverNames", "a tenant needs a name by which its agents and clients ask for the server, or, under listen, ports of its own for both")
	case n > maxNames:
		return fieldError("serverNames", "%d names, and at most %d are accepted", n, maxNames)
	}
	if err := s.Listen.check(); err != nil {
		return err
	}
	if err := s.parse(); err != nil {
		return err
	}
	for _, names := range []struct{ field, value string }{{"agentIDs", s.AgentIDs}, {"agentIdentifiers", s.AgentIdentifiers}} {
		if names.value != "" && names.value != NamesAny && names.value != NamesOfCertificate {
			return fieldError(names.field, "%q: want any or certificate", names.value)
		}
	}
	if err := CheckAPIServers(s.APIServers); err != nil {
		return fieldError("apiServers", "%w", err)
	}
	if err := s.Bounds.check(); err != nil {
		return err
	}
	return s.Tokens.check()
}

// APIByAgent stands for the addresses of an API server that agents beside it dial.
const APIByAgent = "agent"

// CheckAPIServers returns an error unless each of them is HOST:PORT, and they are few; or
// there is only APIByAgent.
func CheckAPIServers(all []string) error {
	switch {
	case len(all) == 1 && all[0] == APIByAgent:
		return nil
	case slices.Contains(all, APIByAgent):
		return fmt.Errorf("%s: either addresses or %s, not both", strings.Join(all, ","), APIByAgent)
	}
	return race.CheckTargets(all)
}

func (b Bounds) check() error {
	for _, n := range []struct {
		field       string
		value, most int
	}{
		{"connections", b.Connections, math.MaxInt},
		{"dialsPerSecond", b.DialsPerSecond, math.MaxInt},
		{"memoryMiB", b.MemoryMiB, maxMemoryMiB},
		{"mbitPerSecond", b.MbitPerSecond, maxMbitPerSecond},
	} {
		if n.value < 0 {
			return fieldError("bounds."+n.field, "%d: want a number from 1, or leave it out for no bound", n.value)
		}
		if n.value > n.most {
			return fieldError("bounds."+n.field, "%d: want %d at most, or leave it out for no bound", n.value, n.most)
		}
	}
	return nil
}

const (
	// maxMemoryMiB is a tebibyte, which no server has as its budget.
	maxMemoryMiB = 1 << 20

	// maxMbitPerSecond is a terabit, which no server has as its line.
	maxMbitPerSecond = 1_000_000
)

func (t *TokensSettings) check() error {
	if t == nil {
		return nil
	}
	for _, part := range []struct{ field, value string }{
		{"kubeconfig", t.Kubeconfig}, {"namespace", t.Namespace}, {"serviceAccount", t.ServiceAccount}, {"audience", t.Audience},
	} {
		if part.value == "" {
			return fieldError("tokens."+part.field, "it is missing: kubeconfig, namespace, serviceAccount and audience are all needed")
		}
	}
	if err := plainName(t.Kubeconfig); err != nil {
		return fieldError("tokens.kubeconfig", "%w", err)
	}
	return nil
}

// parse sets what strategies and rules stand for.
func (s *Settings) parse() (err error) {
	if len(s.Strategies) > 0 {
		if s.order, err = registry.ParseStrategies(strings.Join(s.Strategies, ",")); err != nil {
			return fieldError("strategies", "%w", err)
		}
	}
	if len(s.Policy.Allow)+len(s.Policy.Deny) == 0 {
		return nil
	}
	if _, err := policy.Parse(s.Policy.Allow, nil); err != nil {
		return fieldError("policy.allow", "%w", err)
	}
	if s.rules, err = policy.Parse(s.Policy.Allow, s.Policy.Deny); err != nil {
		return fieldError("policy.deny", "%w", err)
	}
	return nil
}
