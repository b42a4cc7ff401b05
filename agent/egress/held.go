package egress

import (
	"net/netip"
	"sync"

	"konnectivity/internal/policy"
	"konnectivity/tunnel"
)

// held is what one connection is held to: the agent's flags, its policy file, and what the
// server tells of its own. Each must allow it.
type held struct {
	flow    *tunnel.Flow
	flags   *policy.Policy
	file    *policy.Policy
	decided func(error) error // counts what file denies, and lets it pass where the file only reports; nil: there is no file
	told    *policy.Policy    // nil: nothing
}

// holdTo returns what f is held to: a dial, or a connection that is open.
func (d *Dialer) holdTo(f *tunnel.Flow, open bool) (h held, err error) {
	h.flow, h.flags = f, d.opts.Policy
	if d.opts.File != nil {
		h.file, h.decided = d.opts.File.Agent(f, open)
	}
	if f.Rules != "" {
		if h.told, err = d.told.get(f.Rules); err != nil {
			return h, &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "destination not allowed by policy", Err: err}
		}
	}
	return h, nil
}

// all asks each policy.
func (h *held) all(ask func(*policy.Policy) error) error {
	if err := ask(h.flags); err != nil {
		return err
	}
	if h.decided != nil {
		if err := ask(h.file); err != nil {
			if err = h.decided(err); err != nil {
				return err
			}
		}
	}
	if h.told == nil {
		return nil
	}
	return ask(h.told)
}

// host judges a host before it is resolved.
func (h *held) host(host string, port uint16) error {
	return h.all(func(p *policy.Policy) error { return p.AllowHost(host, port) })
}

// unresolved judges a host that a proxy resolves, so that its address is not seen here.
func (h *held) unresolved(host string, port uint16) error {
	if h.told != nil {
		return h.flow.Unjudged()
	}
	return h.all(func(p *policy.Policy) error {
		if p != h.file {
			return p.AllowUnresolved(host, port)
		}
		rules, err := p.AskUnresolved(host, port)
		if err == nil && rules != "" {
			err = h.flow.Unjudged()
		}
		return err
	})
}

// resolved judges an address that host has; host is "" where an address was asked for.
func (h *held) resolved(host string, to netip.AddrPort) error {
	return h.all(func(p *policy.Policy) error { return p.AllowResolved(host, to) })
}

// connected judges the address, ip:port, that host has led to.
func (h *held) connected(host, address string) error {
	final, err := netip.ParseAddrPort(address)
	if err != nil {
		return &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "destination not allowed by policy", Err: err}
	}
	return h.resolved(named(host), final)
}

// maxTold bounds the rules that are kept in a searchable form: those of so many kinds of
// clients.
const maxTold = 256

// toldCache keeps what servers have told.
type toldCache struct {
	mu    sync.Mutex
	known map[string]*policy.Policy
}

func (c *toldCache) get(rules string) (*policy.Policy, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.known[rules]; p != nil {
		return p, nil
	}
	p, err := policy.Told(rules)
	if err != nil {
		return nil, err
	}
	if len(c.known) >= maxTold || c.known == nil {
		c.known = make(map[string]*policy.Policy)
	}
	c.known[rules] = p
	return p, nil
}
