// Package policyfile reads policy files (docs/policy.md): which client may reach which
// destination. It follows them, and counts what they decide. Settings of tenants are YAML as strict,
// by DecodeYAML.
//
// The rules themselves are those of package policy. Server and agent have a Live each.
package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"konnectivity/internal/policy"
	"konnectivity/tunnel"
)

const (
	// MaxSize bounds a file, in bytes: ten thousand rules fit.
	MaxSize = 1 << 20

	// maxRules bounds the rules of a file. maxCached bounds the clients whose rules are kept
	// in a searchable form, and maxHeld what these weigh, some 200 MB: a client has as many
	// names as its CA gives it. One more empties the cache. A tenant's file may have tenantHeld.
	maxRules   = 10_000
	maxCached  = 1024
	maxHeld    = 1 << 20
	tenantHeld = maxHeld / 16
)

// The modes of a file.
const (
	Enforce = "enforce" // what the rules deny is refused
	Report  = "report"  // it is logged and counted, and nothing is refused
)

// text is a file as it is written.
type text struct {
	Version int        `json:"version"`
	Mode    string     `json:"mode"`
	Rules   []textRule `json:"rules"`
	Tests   []Test     `json:"tests"`
}

type textRule struct {
	Name    string   `json:"name"`
	Action  string   `json:"action"`
	Who     []string `json:"who"`
	Tenants []string `json:"tenants"`
	Where   []string `json:"where"`
}

// Test is what a file wants its own rules to decide about one client.
type Test struct {
	Who    []string `json:"who"` // names that the client has proved; none: it is not known
	Tenant string   `json:"tenant"`
	Allow  []string `json:"allow"` // HOST:PORT
	Deny   []string `json:"deny"`
}

// File is a policy file at one moment. It may be used by any number of goroutines.
type File struct {
	Report bool
	rules  *policy.Rules

	mu     sync.RWMutex
	cached map[client]*policy.Policy
	held   int // what they weigh
	most   int // that they may weigh
}

// client is whom rules hold for.
type client struct {
	who    tunnel.Identity
	tenant string
}

// Parse reads a file, YAML or JSON, and runs its tests. The error says in one sentence what
// is wrong.
func Parse(data []byte) (*File, error) {
	var t text
	field, err := DecodeYAML(data, MaxSize, &t)
	switch {
	case field != "":
		return nil, fmt.Errorf("%s: %w", field, err)
	case err != nil:
		return nil, err
	case t.Version != 1:
		return nil, fmt.Errorf("version: %d is not known; want 1", t.Version)
	case t.Mode != Enforce && t.Mode != Report:
		return nil, fmt.Errorf("mode: %q: want %s or %s", t.Mode, Enforce, Report)
	case len(t.Rules) == 0:
		return nil, errors.New("rules: there is none, so that all would be allowed; to allow all, say so by a rule")
	case len(t.Rules) > maxRules:
		return nil, fmt.Errorf("rules: there are %d, more than %d", len(t.Rules), maxRules)
	}
	rules, err := read(t.Rules)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	f := &File{Report: t.Mode == Report, rules: rules, cached: map[client]*policy.Policy{}, most: maxHeld}
	for i, test := range t.Tests {
		if err := f.try(test); err != nil {
			return nil, fmt.Errorf("tests: number %d: %w", i+1, err)
		}
	}
	return f, nil
}

// ParseTenant is Parse for the file of a tenant, whose rules are for its own clients: it names
// no tenants, and enforces.
func ParseTenant(data []byte) (*File, error) {
	f, err := Parse(data)
	switch {
	case err != nil:
		return nil, err
	case f.Report:
		return nil, fmt.Errorf("mode: %s is for the server's and the agent's own file; want %s", Report, Enforce)
	case f.rules.NamesTenants():
		return nil, errors.New("rules: tenants is for the server's own file")
	}
	f.most = tenantHeld
	return f, nil
}

func read(texts []textRule) (*policy.Rules, error) {
	rules := make([]policy.Rule, len(texts))
	names := map[string]bool{}
	for i, r := range texts {
		switch {
		case r.Name == "" || len(r.Name) > 64 || strings.Trim(r.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
			return nil, fmt.Errorf("number %d: name %.80q: want 1 to 64 lower-case letters, digits and '-'", i+1, r.Name)
		case names[r.Name]:
			return nil, fmt.Errorf("rule %q: another has the same name", r.Name)
		case r.Action != "allow" && r.Action != "deny":
			return nil, fmt.Errorf("rule %q: action %.80q: want allow or deny", r.Name, r.Action)
		}
		names[r.Name] = true
		rules[i] = policy.Rule{Name: r.Name, Allow: r.Action == "allow", Who: r.Who, Tenants: r.Tenants, Where: r.Where}
	}
	return policy.ParseRules(rules)
}

// For returns what holds for one client of one tenant; "": the server's own cluster.
func (f *File) For(who tunnel.Identity, tenant string) *policy.Policy {
	key := client{who, tenant}
	f.mu.RLock()
	p := f.cached[key]
	f.mu.RUnlock()
	if p != nil {
		return p
	}
	p = f.rules.For(who, tenant)
	weight := p.Weight()
	f.mu.Lock()
	defer f.mu.Unlock()
	if other := f.cached[key]; other != nil {
		return other
	}
	if len(f.cached) >= maxCached || f.held+weight > f.most {
		clear(f.cached)
		f.held = 0
	}
	f.cached[key] = p
	f.held += weight
	return p
}

// Also judges a request by a tenant's file, once another policy has allowed it, and returns the
// rules to tell the process that resolves the name: those of the other policy (told), and its
// own. The error is a *tunnel.DialError with FailDenied.
func (f *File) Also(flow *tunnel.Flow, host string, port uint16, told string) (rules string, err error) {
	p := f.For(flow.Who(), "")
	if rules, err = p.AskUnresolved(host, port); err != nil {
		return "", err
	}
	flow.Rule = cmp.Or(p.AllowedBy(host, port, netip.Addr{}), flow.Rule)
	if rules, ok := policy.JoinTold(told, rules); ok {
		return rules, nil
	}
	return "", flow.Unjudged()
}

// Still judges an open connection. If the address of its name matters, and other rules were
// told of it when it was dialed, the address that the agent has reached decides: flow.Far.
// tenant is "" for a tenant's own file.
func (f *File) Still(flow *tunnel.Flow, tenant, host string, port uint16) error {
	p := f.For(flow.Who(), tenant)
	rules, err := p.AskUnresolved(host, port)
	if err != nil || rules == "" || rules == flow.Rules {
		return err
	}
	if flow.Far != nil {
		if to, err := netip.ParseAddrPort(flow.Far.String()); err == nil && to.Port() == port {
			return p.AllowResolved(host, to)
		}
	}
	return flow.Unjudged()
}

// try runs one of the file's tests.
func (f *File) try(t Test) error {
	who := tunnel.NewIdentity(t.Who...)
	if len(t.Who) > 0 && who == "" {
		return fmt.Errorf("who %q: want names such as cn:prometheus", t.Who)
	}
	for i, address := range slices.Concat(t.Allow, t.Deny) {
		d := f.Explain(who, t.Tenant, address)
		switch allow := i < len(t.Allow); {
		case d.Bad != nil:
			return fmt.Errorf("%s: %w", address, d.Bad)
		case d.Depends != "":
			return fmt.Errorf("%s: what the rules say of this name depends on the address that the agent finds for it; test that address", address)
		case allow && d.Denied != nil:
			return fmt.Errorf("%s should reach %s, but is not allowed to: %w", shown(who), address, d.Denied)
		case !allow && d.Denied == nil && d.Rule != "":
			return fmt.Errorf("%s should not reach %s, but rule %q allows it", shown(who), address, d.Rule)
		case !allow && d.Denied == nil:
			return fmt.Errorf("%s should not reach %s, but no rule denies it", shown(who), address)
		}
	}
	return nil
}

func shown(who tunnel.Identity) string {
	if who == "" {
		return "an unknown client"
	}
	return who.String()
}

// Decision is what a file says about one client and one destination.
type Decision struct {
	Bad     error  // the destination is none
	Denied  error  // why not; nil: it is allowed
	Rule    string // name of the rule that allows it; "": there is none, and none is needed
	Depends string // of a name: the rules by address that the agent holds it to, one a line
}

// Explain decides as a server does, whatever the file's mode is.
func (f *File) Explain(who tunnel.Identity, tenant, address string) (d Decision) {
	host, port, err := tunnel.SplitAddress(address)
	if err != nil {
		d.Bad = err
		return d
	}
	var dial *tunnel.DialError
	rules := f.For(who, tenant)
	if d.Depends, err = rules.AskUnresolved(host, port); errors.As(err, &dial) {
		d.Denied = dial.Err
	} else {
		d.Rule = rules.AllowedBy(host, port, netip.Addr{})
	}
	return d
}
