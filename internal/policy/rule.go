package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"konnectivity/tunnel"
)

// rule matches destinations by port, and by either prefix or glob.
type rule struct {
	text   string // as it was given
	name   string // of the rule of a file that has it; "": of a flag
	prefix netip.Prefix
	glob   string // as fold returns it
	portRange
}

// portRange is the ports from first to last.
type portRange struct{ first, last uint16 }

func parseRules(texts []string) ([]*rule, error) {
	rules := make([]*rule, 0, len(texts))
	for _, text := range texts {
		r, err := parseRule(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("destination rule %q: %w; want an IP address, CIDR or host glob, then :PORT or :FIRST-LAST where ports matter", text, err)
		}
		rules = append(rules, &r)
	}
	return rules, nil
}

func parseRule(text string) (rule, error) {
	host, ports, err := splitRule(text)
	if err != nil {
		return rule{}, err
	}
	r := rule{text: text, portRange: portRange{1, 65535}}
	if ports != "" {
		if r.portRange, err = parsePorts(ports); err != nil {
			return rule{}, err
		}
	}
	if r.prefix, err = parsePrefix(host); err == nil {
		return r, nil
	}
	if strings.ContainsAny(host, "/:%") {
		return rule{}, fmt.Errorf("%q is not a CIDR", host)
	}
	r.glob, err = parseGlob(host)
	return r, err
}

// splitRule separates host and ports; ports is "" if none were given.
func splitRule(text string) (host, ports string, err error) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		host, rest, ok = strings.Cut(rest, "]")
		if !ok {
			return "", "", fmt.Errorf("the bracket is not closed")
		}
		if rest == "" {
			return host, "", nil
		}
		ports, ok = strings.CutPrefix(rest, ":")
		if !ok || ports == "" {
			return "", "", fmt.Errorf("after the bracket only :PORTS may follow")
		}
		return host, ports, nil
	}
	if _, err := parsePrefix(text); err == nil {
		return text, "", nil // bare IPv6 has colons of its own
	}
	host, ports, found := strings.Cut(text, ":")
	switch {
	case !found:
		return text, "", nil
	case strings.Contains(ports, ":"):
		return "", "", fmt.Errorf("IPv6 with ports is written [ADDRESS]:PORTS")
	case ports == "":
		return "", "", fmt.Errorf("no port after the colon")
	}
	return host, ports, nil
}

// parsePrefix reads an address without a zone, or a CIDR.
func parsePrefix(host string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(host); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return tunnel.ParseCIDR(host)
}

func parsePorts(text string) (p portRange, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	if p.first, err = parsePort(from); err == nil {
		p.last, err = parsePort(to)
	}
	if err == nil && p.last < p.first {
		err = fmt.Errorf("the port range %s runs backwards", text)
	}
	return p, err
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

func parseGlob(host string) (string, error) {
	if !tunnel.ValidHost(host) || strings.Contains(host, ",") {
		return "", fmt.Errorf("%q is not a host", host)
	}
	// 10.0.0.* would be compared with names only, and so match nothing: an
	// error is better than a false sense of safety.
	_, address := tunnel.ParseLooseIP(host)
	if address || strings.ContainsAny(host, "0123456789") && strings.Trim(host, "0123456789.*") == "" {
		return "", fmt.Errorf("%q looks like an address; networks are written as CIDR", host)
	}
	for strings.Contains(host, "**") {
		host = strings.ReplaceAll(host, "**", "*")
	}
	return fold(host), nil
}

// fold has spellings of one name compare equal. More than one dot at the end is no name
// to resolvers, but may be to proxies.
func fold(host string) string { return strings.ToLower(strings.TrimRight(host, ".")) }

// parsePadded reads the parts of an IPv4 address as decimal numbers whatever zeros they
// begin with, as some do where inet_aton(3) reads octal ones.
func parsePadded(host string) (netip.Addr, bool) {
	if len(host) == 0 || host[0] < '0' || host[0] > '9' {
		return netip.Addr{}, false
	}
	parts := strings.Split(strings.TrimRight(host, "."), ".")
	for i, part := range parts {
		if part == "" {
			return netip.Addr{}, false
		}
		parts[i] = cmp.Or(strings.TrimLeft(part, "0"), "0")
	}
	addr, err := netip.ParseAddr(strings.Join(parts, "."))
	return addr, err == nil && addr.Is4()
}

func (p portRange) has(port uint16) bool { return p.first <= port && port <= p.last }

// denial is why the rule denies a destination.
func (r *rule) denial() error { return &Denial{Rule: r.name, text: r.text} }

// Denial says which rule denied a destination.
type Denial struct {
	Rule string // its name in a policy file; "": none
	text string
}

// Error is for logs: clients are not told rules.
func (d *Denial) Error() string {
	if d.Rule == "" {
		return fmt.Sprintf("denied by rule %q", d.text)
	}
	return fmt.Sprintf("denied by rule %q (%s)", d.Rule, d.text)
}

// matchGlob takes linear time per star: each piece between stars is matched at
// its first occurrence, and only the last is tied to the end.
func matchGlob(glob, s string) bool {
	first, rest, found := strings.Cut(glob, "*")
	if !found {
		return glob == s
	}
	s, ok := strings.CutPrefix(s, first)
	if !ok {
		return false
	}
	for {
		piece, more, found := strings.Cut(rest, "*")
		if !found {
			return strings.HasSuffix(s, piece)
		}
		i := strings.Index(s, piece)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(piece):], more
	}
}
