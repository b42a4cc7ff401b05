package policy

import (
	"fmt"
	"strings"

	"konnectivity/tunnel"
)

// tell returns rules as Told reads them: one a line, with "-" before those that deny and
// "+" before those that allow.
func tell(sign string, rules []*rule) string {
	var b strings.Builder
	for _, r := range rules {
		b.WriteString(sign)
		b.WriteString(r.text)
		b.WriteByte('\n')
	}
	return b.String()
}

// AskUnresolved is AllowUnresolved that trusts the process which resolves the name to hold
// the address to the rules that it returns, by Told; "": the decision does not depend on the
// address.
func (p *Policy) AskUnresolved(host string, port uint16) (rules string, err error) {
	if err := p.AllowHost(host, port); err != nil || p == nil {
		return "", err
	}
	if _, ok := tunnel.ParseIP(host); ok {
		return "", nil
	}
	rules = p.denied
	if p.allow.host(host, port) == nil {
		rules = p.both // the same where nothing is allowed alone
	}
	if len(rules) > tunnel.RulesSize {
		return "", refuse(host, port, fmt.Errorf("which address the name has decides, and there are too many rules about that to tell an agent: %d bytes, of %d", len(rules), tunnel.RulesSize))
	}
	return rules, nil
}

// JoinTold joins the rules of two policies, as AskUnresolved returns them. It returns false
// if both have rules that allow, since Told would take one of them for enough, or if the
// result is too long.
func JoinTold(a, b string) (both string, ok bool) {
	allows := func(rules string) bool { return strings.Contains("\n"+rules, "\n+") }
	both = a + b
	return both, len(both) <= tunnel.RulesSize && !(allows(a) && allows(b))
}

// Told reads rules that AskUnresolved returned.
func Told(rules string) (*Policy, error) {
	var allow, deny []string
	for line := range strings.Lines(rules) {
		switch {
		case strings.HasPrefix(line, "+"):
			allow = append(allow, line[1:])
		case strings.HasPrefix(line, "-"):
			deny = append(deny, line[1:])
		default:
			return nil, fmt.Errorf("%.100q is no rule that a server tells", line)
		}
	}
	return Parse(allow, deny)
}
