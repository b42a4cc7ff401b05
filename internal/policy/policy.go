// Package policy says which destinations may be dialed. The agent applies it to
// the addresses a name resolved to, at the moment it connects, so a name that
// changes its address between check and use (DNS rebinding) gains nothing; the
// server applies it to the requested destination, before it chooses an agent.
//
// It owns nothing. Servers and agents make a Policy of their flags, and servers
// one for each tenant that has rules.
package policy

import (
	"net/netip"

	"konnectivity/tunnel"
)

// Policy is a set of allow and deny rules. In this order:
//
//  1. a destination that a deny rule matches is denied, also if its address is spelled
//     as only some resolvers and proxies read it (0177.0.0.1, 2130706433);
//  2. an address under which cloud machines hand out credentials (Protected) is
//     denied unless an allow rule names it or a network inside its link-local
//     block: "*" and 0.0.0.0/0 do not open it;
//  3. without allow rules everything else is allowed, with allow rules only
//     what one of them matches.
//
// The zero Policy and a nil one have no rules, so only Protected is denied. A
// Policy does not change once parsed and may be used by any number of
// goroutines; no method blocks. Every error is a *tunnel.DialError with
// FailDenied whose Reason is fit for the client and whose Err names the rule.
type Policy struct {
	allow, deny set
	closed      bool // there are allow rules, if for others: what none of allow matches is denied

	// What a process that resolves names is told, see AskUnresolved.

	denied, both string
}

// Parse reads rules of the form HOST or HOST:PORTS. HOST is an IP address, a
// CIDR, or a glob over host names in which * stands for any characters, dots
// included; * alone is every destination. PORTS is a port or a range FIRST-LAST.
// An IPv6 address or CIDR stands in brackets where ports follow:
// [2001:db8::/32]:443. The error names the rule and its fault.
func Parse(allow, deny []string) (*Policy, error) {
	a, err := parseRules(allow)
	if err != nil {
		return nil, err
	}
	d, err := parseRules(deny)
	if err != nil {
		return nil, err
	}
	return newPolicy(a, d, len(a) > 0), nil
}

func newPolicy(allow, deny []*rule, closed bool) *Policy {
	p := &Policy{allow: newSet(allow), deny: newSet(deny), closed: closed}
	p.denied = tell("-", p.deny.addrs)
	p.both = p.denied + tell("+", p.allow.addrs)
	return p
}

// AllowHost reports whether host may be dialed, as far as that is known before
// it is resolved. An address is judged as by AllowAddr. A name passes even if
// that depends on its addresses, so the process that resolves it must also call
// AllowResolved.
func (p *Policy) AllowHost(host string, port uint16) error {
	if addr, ok := tunnel.ParseIP(host); ok {
		return p.AllowAddr(netip.AddrPortFrom(addr, port))
	}
	if err := p.denyHost(host, port); err != nil {
		return err
	}
	if p.open() || p.allow.host(host, port) != nil || p.allow.someAddr(port) {
		return nil
	}
	return refuse(host, port, errNoRule)
}

// AllowUnresolved is AllowHost for a process that passes a name on and never
// sees its addresses (the server): if there are allow rules, one must match the
// name itself. Deny rules for addresses do not apply to names; they are for the
// side that resolves.
func (p *Policy) AllowUnresolved(host string, port uint16) error {
	if err := p.AllowHost(host, port); err != nil {
		return err
	}
	if _, ok := tunnel.ParseIP(host); ok {
		return nil // AllowHost has judged it as an address
	}
	if p.open() || p.allow.host(host, port) != nil {
		return nil
	}
	return refuse(host, port, errNoRule)
}

// AllowAddr reports whether an address may be dialed that was requested as an
// address.
func (p *Policy) AllowAddr(to netip.AddrPort) error {
	return p.AllowResolved("", to)
}

// AllowResolved reports whether an address that host resolved to may be dialed.
// An allow rule for the name suffices; deny rules apply to both.
func (p *Policy) AllowResolved(host string, to netip.AddrPort) error {
	if host != "" {
		if err := p.denyHost(host, to.Port()); err != nil {
			return err
		}
	}
	if err := p.denyAddr(to); err != nil {
		return err
	}
	if p.open() || (host != "" && p.allow.host(host, to.Port()) != nil) || p.allow.addr(plain(to.Addr()), to.Port()) != nil {
		return nil
	}
	return refuse(to.Addr().String(), to.Port(), errNoRule)
}

// AllowedBy is the name of a rule that allows a destination, which may be dialed: the name or
// address that was asked for, or the address that it has led to, where that is valid. "": none
// of a file does, and none has to.
func (p *Policy) AllowedBy(host string, port uint16, at netip.Addr) string {
	addr, asked := tunnel.ParseIP(host)
	var by *rule
	if !asked {
		addr, by = at, p.allow.host(host, port)
	}
	if by == nil && addr.IsValid() {
		by = p.allow.addr(plain(addr), port)
	}
	if by == nil {
		return ""
	}
	return by.name
}

// Weight is how much memory its rules take, in units of some 200 bytes: one for each
// destination.
func (p *Policy) Weight() int { return p.allow.n + p.deny.n }

func (p *Policy) open() bool { return p == nil || !p.closed }

// denyHost judges a name. A name that some resolvers read as an address is also
// denied where the address is.
func (p *Policy) denyHost(host string, port uint16) error {
	for _, read := range [...]func(string) (netip.Addr, bool){tunnel.ParseLooseIP, parsePadded} {
		if addr, ok := read(host); ok {
			if err := p.denyAddr(netip.AddrPortFrom(addr, port)); err != nil {
				return err
			}
		}
	}
	if p == nil {
		return nil
	}
	if r := p.deny.host(host, port); r != nil {
		return refuse(host, port, r.denial())
	}
	return nil
}

func (p *Policy) denyAddr(to netip.AddrPort) error {
	var all [maxViews]netip.Addr
	for _, view := range views(to.Addr(), &all) {
		if p != nil {
			if r := p.deny.addr(view, to.Port()); r != nil {
				return refuse(to.Addr().String(), to.Port(), r.denial())
			}
		}
		if block, ok := protectedBlock(view); ok && !p.opens(block, view, to.Port()) {
			return refuse(to.Addr().String(), to.Port(), errProtected)
		}
	}
	return nil
}

// opens reports whether an allow rule names addr, rather than everything.
func (p *Policy) opens(block netip.Prefix, addr netip.Addr, port uint16) bool {
	return p != nil && p.allow.inside(addr, block.Bits(), port) != nil
}

func refuse(host string, port uint16, why error) error {
	return &tunnel.DialError{
		Failure: tunnel.FailDenied,
		Address: tunnel.JoinAddress(host, port),
		Reason:  "destination not allowed by policy",
		Err:     why,
	}
}
