package policy

import (
	"fmt"
	"slices"
	"strings"

	"konnectivity/tunnel"
)

// Rule is one rule of a policy for several clients.
type Rule struct {
	Name    string   // in logs and metrics
	Allow   bool     // false: it denies
	Who     []string // "*", or globs over the names of a tunnel.Identity; one has to match
	Tenants []string // globs over the names of tenants; see Rules.For
	Where   []string // as Parse takes them
}

// Rules are rules for several clients. They do not change, and may be used by any number of
// goroutines.
type Rules struct {
	rules  []forSome
	closed bool // one of them allows
}

// forSome is a Rule that was read.
type forSome struct {
	allow   bool
	anybody bool
	who     []named
	tenants []string
	where   []*rule
}

// named is a glob over names of one kind.
type named struct{ kind, glob string }

// ParseRules reads rules. The error names the rule and its fault.
func ParseRules(rules []Rule) (*Rules, error) {
	out := new(Rules)
	for _, r := range rules {
		parsed, err := r.parse()
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Name, err)
		}
		out.rules = append(out.rules, parsed)
		out.closed = out.closed || r.Allow
	}
	return out, nil
}

func (r Rule) parse() (out forSome, err error) {
	out.allow, out.tenants = r.Allow, r.Tenants
	for _, text := range r.Who {
		if text == "*" {
			out.anybody = true
			continue
		}
		kind, glob, _ := strings.Cut(text, ":")
		if glob == "" || !slices.Contains(tunnel.IdentityKinds(), kind) {
			return out, fmt.Errorf("who %q: want *, or a kind (%s), a colon and a glob", text, strings.Join(tunnel.IdentityKinds(), ", "))
		}
		if kind == "dns" {
			glob = fold(glob)
		}
		out.who = append(out.who, named{kind, glob})
	}
	if len(r.Who) == 0 {
		return out, fmt.Errorf("who is missing; want *, or globs such as cn:monitoring-*")
	}
	if len(r.Where) == 0 {
		return out, fmt.Errorf("where is missing; want *, or destinations such as 10.0.0.0/8:443")
	}
	if out.where, err = parseRules(r.Where); err != nil {
		return out, err
	}
	for _, at := range out.where {
		at.name = r.Name
	}
	return out, nil
}

// For returns what holds for one client of one tenant; "" is the cluster of the server's own
// flags. Since the CA of a tenant may issue any name, a rule that allows is for clients of the
// server's own cluster alone, unless it lists tenants; one that denies is for all, then. To a
// client that is not known, all rules that deny apply, and of those that allow only the ones
// for "*".
func (r *Rules) For(who tunnel.Identity, tenant string) *Policy {
	var allow, deny []*rule
	var names []named // with texts for globs
	for _, name := range who.Names() {
		kind, value, _ := strings.Cut(name, ":")
		names = append(names, named{kind, value})
	}
	for _, one := range r.rules {
		switch {
		case !one.inTenant(tenant) || !one.matches(names):
		case one.allow:
			allow = append(allow, one.where...)
		default:
			deny = append(deny, one.where...)
		}
	}
	return newPolicy(allow, deny, r.closed)
}

// NamesTenants reports whether one of the rules is for some tenants.
func (r *Rules) NamesTenants() bool {
	return slices.ContainsFunc(r.rules, func(one forSome) bool { return len(one.tenants) > 0 })
}

func (r *forSome) inTenant(tenant string) bool {
	if len(r.tenants) == 0 {
		return !r.allow || tenant == ""
	}
	return slices.ContainsFunc(r.tenants, func(glob string) bool { return matchGlob(glob, tenant) })
}

func (r *forSome) matches(names []named) bool {
	if r.anybody || len(names) == 0 && !r.allow {
		return true
	}
	for _, is := range r.who {
		for _, name := range names {
			if name.kind == is.kind && matchGlob(is.glob, name.glob) {
				return true
			}
		}
	}
	return false
}
