package reach

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/peers"
	"konnectivity/server/registry"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// connectTimeout bounds an attempt: TCP, TLS, HELLO and all routes.
	connectTimeout = 10 * time.Second

	// resolveEvery is how often names are looked up, and resolveTime how long that may
	// take.
	resolveEvery = 5 * time.Second
	resolveTime  = 5 * time.Second

	// maxAddresses bounds how many servers are linked to: each may link back.
	maxAddresses = routes.MaxServers / 2

	// quietTime is how long a server may be away before that is logged: a replaced one's
	// address is gone by then, and one that restarts is back.
	quietTime = 10 * time.Second
)

// policy keeps a link to each address. The pauses stay short, since dials wait only
// tunnel.BackTime for agents that have gone to a server that is not linked, and servers
// are few.
var policy = peers.Policy{
	Backoff:   peers.Backoff{Base: 100 * time.Millisecond, Limit: 2 * time.Second, Growth: 2},
	ShortLife: 10 * time.Second, Spread: 50 * time.Millisecond, Losses: 64,
	ByAddress: true,
	Want:      func(_, addresses int) int { return max(1, addresses) },
}

// Options are what Servers work with. All must be given but ServerName and Found.
type Options struct {
	ID         string   // this server's
	Addresses  []string // HOST:PORT of other servers; a name may have several addresses
	ServerName string   // that their certificates must have; "": the host of the address

	// Found returns further addresses, which need a ServerName, until ctx ends at the
	// latest; nil: there are none.
	Found func(ctx context.Context) ([]netip.AddrPort, error)

	// Admitted is called with the certificate of each server that is linked to from here,
	// and its intermediates. leave is called at the link's end. The link is ended when life
	// ends: the certificate is not good any more.
	Admitted func(chain []*x509.Certificate) (life context.Context, leave func())

	// TLS returns a configuration as tlsreload's Source.Client does. It must accept
	// servers alone.
	TLS func(serverName string, nextProtos ...string) *tls.Config
	// Link is for a new link, without Verify.
	Link func() link.Config

	Known *registry.Peers
	// TellAll calls tell for all that this server's agents serve, in the order in which
	// Tell is called for changes.
	TellAll func(tell func(cluster string, k routes.Key))
	// Changed is called when there may be news of which clusters other servers serve.
	Changed func()
	// Fault counts a fault of another server: "full", "slow" or "protocol".
	Fault func(reason string)
	// Linked is called with each new link. ended is called at the link's end.
	Linked func(*link.Session) (ended func())

	Log logrus.FieldLogger
}

// Servers are the others. All methods may be called from any goroutine.
type Servers struct {
	opts   Options
	tls    map[string]*tls.Config // by server name
	set    *peers.Set[address, peers.Session]
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	path   link.Path
	feeds  feeds

	mu       sync.Mutex
	links    map[*Link]struct{}
	own      map[string]bool           // keys of links that were accepted from this server's id
	drains   bool                      // Drain was called
	failing  map[netip.AddrPort]*fault // nothing of addresses that are gone
	known    []address                 // of the others
	unlooked bool                      // addresses could not all be looked up, and that was logged

	// Of the loop of set.
	unheard map[string]bool // addresses that are to be heard of before Known settles; nil: not known yet
	flaps   flaps

	crowded bool // of resolve: there were more than maxAddresses, and that was logged
}

// address is where a server is.
type address struct {
	at   netip.AddrPort
	name string // that its certificate must have
}

// fault is why there is no link to an address.
type fault struct {
	err    error     // of the newest attempt
	since  time.Time // when an attempt failed first
	logged bool      // by its own line, or counted in that of another
}

// New returns Servers that do nothing yet.
func New(opts Options) (*Servers, error) {
	s := &Servers{
		opts: opts, tls: make(map[string]*tls.Config), lookup: lookup,
		feeds: feeds{open: make(map[*feed]struct{})}, own: make(map[string]bool),
		links: make(map[*Link]struct{}), failing: make(map[netip.AddrPort]*fault),
		flaps: flaps{make(map[netip.AddrPort]*ends), make(map[tunnel.LossCause]time.Time)},
	}
	if opts.Found != nil {
		s.tls[opts.ServerName] = opts.TLS(opts.ServerName, link.ALPN)
	}
	for _, text := range opts.Addresses {
		host, _, err := tunnel.SplitAddress(text)
		if err != nil {
			return nil, fmt.Errorf("the address of another server %q: want HOST:PORT", text)
		}
		name := s.nameOf(host)
		s.tls[name] = opts.TLS(name, link.ALPN)
	}
	s.set = peers.New(peers.Config[address, peers.Session]{
		Policy: policy, ConnectTimeout: connectTimeout,
		Key:          func(a address) string { return a.at.String() },
		Resolve:      s.resolve,
		ResolveEvery: func(bool, error) time.Duration { return resolveEvery + rand.N(resolveEvery/5) },
		Connect:      s.connect,
		Events: peers.Events[address, peers.Session]{
			Resolved: s.resolved,
			Joined:   s.joined,
			Failed:   s.failed,
			Ended: func(m peers.Member[address, peers.Session], _ peers.State) {
				if l, made := m.Session.(*linked); made {
					s.ended(m.Address.at, l.Err())
				}
			},
		},
	})
	return s, nil
}

func (s *Servers) nameOf(host string) string { return cmp.Or(s.opts.ServerName, host) }

// Run keeps a link to each of the other servers until ctx ends, and closes those.
func (s *Servers) Run(ctx context.Context) {
	s.set.Keep()
	s.set.Run(ctx)
	s.set.Close()
	s.feeds.running.Wait()
}

// Retry links at once where that has failed: another server has just come.
func (s *Servers) Retry() { s.set.Retry() }

// resolve finds the addresses of the other servers. It asks for all at once, so that an API
// or a name server that does not answer takes no time of the others'.
func (s *Servers) resolve(ctx context.Context) (all []address, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	seen := make(map[netip.AddrPort]bool)
	add := func(at netip.AddrPort, name string) {
		if !seen[at] {
			seen[at], all = true, append(all, address{at, name})
		}
	}
	ips, errs := make([][]netip.Addr, len(s.opts.Addresses)), make([]error, len(s.opts.Addresses))
	var asking sync.WaitGroup
	for i, text := range s.opts.Addresses {
		host, _, _ := tunnel.SplitAddress(text) // which New has checked
		asking.Go(func() { ips[i], errs[i] = s.lookup(ctx, host) })
	}
	var found []netip.AddrPort
	if s.opts.Found != nil {
		found, err = s.opts.Found(ctx)
	}
	asking.Wait()
	for _, at := range found {
		add(at, s.opts.ServerName)
	}
	for i, text := range s.opts.Addresses {
		host, port, _ := tunnel.SplitAddress(text)
		for _, ip := range ips[i] {
			add(netip.AddrPortFrom(ip.Unmap(), port), s.nameOf(host))
		}
	}
	return s.cut(all), errors.Join(append(errs, err)...)
}

// cut leaves maxAddresses of more, always the same: the order of a name's addresses changes.
func (s *Servers) cut(all []address) []address {
	before := s.crowded
	s.crowded = len(all) > maxAddresses
	if !s.crowded {
		return all
	}
	if !before {
		s.opts.Log.Warnf("there are %d addresses of other servers, and at most %d are linked; the rest are left out", len(all), maxAddresses)
	}
	slices.SortFunc(all, func(a, b address) int { return a.at.Compare(b.at) })
	return all[:maxAddresses]
}

func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, ok := tunnel.ParseIP(host); ok {
		return []netip.Addr{ip}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

func (s *Servers) resolved(known []address, err error) {
	gone := func(at netip.AddrPort) bool {
		return !slices.ContainsFunc(known, func(a address) bool { return a.at == at })
	}
	maps.DeleteFunc(s.flaps.ends, func(at netip.AddrPort, _ *ends) bool { return gone(at) })
	s.mu.Lock()
	maps.DeleteFunc(s.failing, func(at netip.AddrPort, _ *fault) bool { return gone(at) })
	begins := err != nil && !s.unlooked
	s.known, s.unlooked = known, err != nil
	s.mu.Unlock()
	if begins {
		s.opts.Log.WithError(err).Warn("the addresses of other servers could not all be looked up; retrying")
	}
	if s.unheard != nil {
		return
	}
	s.unheard = make(map[string]bool)
	for _, a := range known {
		s.unheard[a.at.String()] = true
	}
	s.settle()
}

func (s *Servers) joined(m peers.Member[address, peers.Session]) {
	s.heard(m.Address)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.failing, m.Address.at)
}

func (s *Servers) failed(f peers.Failure[address]) {
	s.heard(f.Address)
	log := s.opts.Log.WithError(f.Err).WithField("server", f.Address.at.String())
	const text = "another server cannot be linked; retrying"
	if unlinked := s.noteFault(f.Address.at, f.Err); unlinked > 0 {
		log.WithField("unlinked", unlinked).Warn(text)
	} else {
		log.Debug(text)
	}
}

// noteFault notes why an address could not be linked. If that is to be logged, it returns how many
// servers stay away: one line counts for all of them. One that has failed only now is not among
// them, and has a line of its own if it stays away.
func (s *Servers) noteFault(at netip.AddrPort, err error) (unlinked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.failing[at]
	if f == nil {
		f = &fault{since: time.Now()}
		s.failing[at] = f
	}
	f.err = err
	if f.logged || time.Since(f.since) < quietTime {
		return 0
	}
	for _, f := range s.failing {
		if time.Since(f.since) >= quietTime/2 { // those that fail for one reason do so within seconds
			f.logged = true
			unlinked++
		}
	}
	return unlinked
}

// heard notes that an attempt at an address has ended.
func (s *Servers) heard(a address) {
	delete(s.unheard, a.at.String())
	s.settle()
}

// settle has Known settle once each of the others has told its routes, or could not be linked.
func (s *Servers) settle() {
	if s.unheard != nil && len(s.unheard) == 0 {
		s.opts.Known.Settle()
	}
}

// Failing is why there is no link to each of the addresses that could not be linked.
func (s *Servers) Failing() map[netip.AddrPort]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[netip.AddrPort]error, len(s.failing))
	for at, f := range s.failing {
		all[at] = f.err
	}
	return all
}

// Missing is to how many addresses of other servers there is no link: one at least, where none is
// known and not all could be looked up. Until the first look-up has ended, it is none.
func (s *Servers) Missing() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unlooked && len(s.known) == 0 {
		return 1
	}
	members := s.set.Members()
	for _, a := range s.known {
		if !slices.ContainsFunc(members, func(m peers.Member[address, peers.Session]) bool { return m.Address.at == a.at }) {
			n++
		}
	}
	return n
}
