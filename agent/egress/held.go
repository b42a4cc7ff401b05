package egress

import (
	"net"
	"net/netip"
	"net/url"
	"sync"

	"konnectivity/internal/policy"
	"konnectivity/tunnel"
)

// held is what one connection is held to: the agent's flags, its policy file, and what the
// server tells of its own. Each must allow it.
type held struct {
	flow    *tunnel.Flow
	host    string
	addr    netip.Addr // what host is; not valid: it is a name
	port    uint16
	proxy   *url.URL // that leads to the host; nil: none
	flags   *policy.Policy
	file    *policy.Policy
	decided func(error) error // counts what file denies, and lets it pass where the file only reports; nil: there is no file
	told    *policy.Policy    // nil: nothing
}

// holdTo returns what f is held to: a dial, or a connection that is open. It judges the host
// before that is resolved, and finds the proxy.
func (d *Dialer) holdTo(f *tunnel.Flow, open bool) (h held, err error) {
	h.flow, h.flags = f, d.opts.Policy
	if h.host, h.port, err = tunnel.SplitAddress(f.Address); err != nil {
		return h, err
	}
	h.addr, _ = netip.ParseAddr(h.host)
	if d.opts.File != nil {
		h.file, h.decided = d.opts.File.Agent(f, open)
	}
	if f.Rules != "" {
		if h.told, err = d.told.get(f.Rules); err != nil {
			return h, &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "destination not allowed by policy", Err: err}
		}
	}
	if err := h.all(func(p *policy.Policy) error { return p.AllowHost(h.host, h.port) }); err != nil {
		return h, err
	}
	if h.proxy, err = ProxyFor(d.opts.Proxy, h.host, h.port); err != nil {
		return h, unavailable("the proxy set in the environment is not a valid URL", nil)
	}
	if h.proxy != nil {
		err = h.unresolved()
	}
	return h, err
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

// unresolved judges a host that a proxy resolves, so that its address is not seen here.
func (h *held) unresolved() error {
	if h.told != nil {
		return h.flow.Unjudged()
	}
	return h.all(func(p *policy.Policy) error {
		if p != h.file {
			return p.AllowUnresolved(h.host, h.port)
		}
		rules, err := p.AskUnresolved(h.host, h.port)
		if err == nil && rules != "" {
			err = h.flow.Unjudged()
		}
		return err
	})
}

// resolved judges an address that the host has, or is.
func (h *held) resolved(to netip.AddrPort) error {
	name := h.host
	if h.addr.IsValid() {
		name = "" // rules for names say nothing about an address
	}
	return h.all(func(p *policy.Policy) error { return p.AllowResolved(name, to) })
}

// connected judges the address, ip:port, that the host has led to.
func (h *held) connected(address string) error {
	final, err := netip.ParseAddrPort(address)
	if err != nil {
		return &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "destination not allowed by policy", Err: err}
	}
	return h.resolved(final)
}

// noteRule notes which rule of the file allows the connection. at is the address that the host
// has led to; nil: it is not seen here.
func (h *held) noteRule(at net.Addr) {
	if h.decided == nil {
		return
	}
	var to netip.AddrPort
	if tcp, ok := at.(*net.TCPAddr); ok {
		to = tcp.AddrPort()
	}
	h.flow.Rule = h.file.AllowedBy(h.host, h.port, to.Addr())
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
