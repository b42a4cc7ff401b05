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
	if !p.open() && p.allow.host(host, port) == nil {
		rules = p.both
	}
	if len(rules) > tunnel.RulesSize {
		return "", refuse(host, port, fmt.Errorf("which address the name has decides, and there are too many rules about that to tell an agent: %d bytes, of %d", len(rules), tunnel.RulesSize))
	}
	return rules, nil
}

// Told reads rules that AskUnresolved returned.
func Told(rules string) (*Policy, error) {
	var allow, deny []string
	for line := range strings.Lines(rules) {
		line = strings.TrimSuffix(line, "\n")
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
