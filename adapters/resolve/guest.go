package resolve

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

const (
	// defaultGuestTime bounds one lookup, including all tries and candidates.
	defaultGuestTime = 5 * time.Second

	// staleTry is how long a query on a kept connection may take: its other end
	// may have vanished, and a new connection is soon made.
	staleTry = 800 * time.Millisecond

	// maxPositive bounds how long an answer is kept, whatever its TTL, so that
	// a wrong record with a TTL of a week does not require a restart.
	maxPositive = 10 * time.Minute

	// maxNegative bounds how long an absence is kept: a user who creates a
	// missing name should not have to wait long.
	maxNegative = 30 * time.Second

	// maxHalf bounds how long addresses of one kind are kept while those of the
	// other could not be had: a cluster may have no route to any of them.
	maxHalf = 5 * time.Second

	// defaultNegative is for absences whose zone states no time.
	defaultNegative = 5 * time.Second

	// clusterDomain is the domain of the names of Services.
	clusterDomain = "cluster.local"

	// probeName is looked up to see whether the DNS answers; any answer will
	// do.
	probeName = "kubernetes.default.svc." + clusterDomain + "."
)

// errReached is in the chain of Guest's errors if the DNS was reached through
// the tunnel, so the tunnel works, but could not answer, or not in time.
var errReached = errors.New("the hosted cluster's DNS was reached")

// errWaited is in the chain of Guest's errors about a lookup that says nothing of the tunnel:
// it spent its time waiting for others, because all slots were taken.
var errWaited = errors.New("it had to wait for other lookups")

// GuestOptions configures a Guest.
type GuestOptions struct {
	// Server returns the addresses of the DNS Service.
	Server func(ctx context.Context) ([]netip.Addr, error)

	// Dialer reaches them through the tunnel. It must never use this resolver
	// or its fallback.
	Dialer tunnel.Dialer

	// Time bounds one lookup, including all tries and candidates; 0 means 5 s.
	Time time.Duration
}

// Guest asks the hosted cluster's DNS over TCP through the tunnel. Answers are
// kept for their TTL. It owns idle connections and lookups, so it must be
// closed.
//
// It does not use net.Resolver with a Dial of its own, which could keep the 250 ms
// that a lookup waits for its other family: that resolver returns no TTLs, neither of
// addresses nor of absences, and takes its servers, bounds and retries from the pod's
// resolv.conf. It also makes a connection for every question, through the tunnel,
// where a Guest asks both on one, and the next lookup on the same.
type Guest struct {
	opt     GuestOptions
	flights *Flights[Answer]
	idle    idleConns
	slots   chan struct{} // one token for each connection in use
}

// NewGuest returns a Guest, which connects at the first lookup.
func NewGuest(opt GuestOptions) *Guest {
	g := &Guest{opt: opt, slots: make(chan struct{}, maxDNSConns)}
	g.flights = NewFlights(cmp.Or(opt.Time, defaultGuestTime), g.lookup)
	return g
}

// Resolve implements Resolver, within GuestOptions.Time or ctx.
func (g *Guest) Resolve(ctx context.Context, name string) (Answer, error) {
	key := strings.ToLower(name) // a trailing dot matters here: it forbids candidates
	answer, f, left, err := g.flights.Do(ctx, key)
	if left || errors.Is(err, ErrClosed) {
		return Answer{}, Unavailable(name, "the hosted cluster's DNS did not answer in time", got(f, err))
	}
	return answer, err
}

// Probe looks up an arbitrary name on a new connection, and returns nil if
// there is an answer.
func (g *Guest) Probe(ctx context.Context) error {
	g.CloseIdle()
	f := &Flight[Answer]{Key: probeName}
	_, err := g.ask(ctx, f, dnsmessage.MustNewName(probeName))
	if err != nil && !errors.Is(err, errServFail) {
		return err
	}
	return nil
}

// Forget makes the next lookup of name ask the DNS again.
func (g *Guest) Forget(name string) { g.flights.Forget(strings.ToLower(name)) }

// CloseIdle closes idle connections.
func (g *Guest) CloseIdle() { g.idle.drop() }

// Close ends lookups with an error, waits for them and closes connections.
func (g *Guest) Close() {
	g.flights.Close()
	g.idle.close()
}

// lookup is the work of a flight: it asks for one candidate after another, also
// behind one that the DNS could not answer for: it may depend on others for that.
func (g *Guest) lookup(ctx context.Context, f *Flight[Answer]) (answer Answer, keep time.Duration, err error) {
	keep = maxNegative
	var failed error
	for _, candidate := range candidates(f.Key) {
		name, err := dnsmessage.NewName(candidate)
		if err != nil || !validLabels(candidate) {
			return answer, 0, NotFound(f.Key)
		}
		out, err := g.ask(ctx, f, name)
		switch {
		case errors.Is(err, errServFail):
			failed = err
			continue
		case err != nil:
			return answer, 0, notAsked(f, err)
		case len(out.addrs) > 0:
			return Answer{Addrs: out.addrs, Source: FromGuest}, min(out.ttl, maxPositive), nil
		}
		keep = min(keep, out.ttl)
	}
	if failed != nil {
		return answer, 0, notAsked(f, failed)
	}
	return answer, keep, NotFound(f.Key)
}

// notAsked is the outcome of a flight that the DNS has not answered.
func notAsked(f *Flight[Answer], err error) error {
	return Unavailable(f.Key, "the hosted cluster's DNS could not be asked", got(f, err))
}

// got adds to an error how far f got.
func got(f *Flight[Answer], err error) error {
	switch {
	case f.Reached.Load():
		return errors.Join(errReached, err)
	case f.Waited.Load():
		return errors.Join(errWaited, err)
	default:
		return err
	}
}

// candidates returns the absolute names that name can mean: itself, and its
// meaning within the cluster. The likelier comes first.
func candidates(name string) []string {
	switch {
	case strings.HasSuffix(name, "."):
		return []string{name}
	case strings.HasSuffix(name, ".svc"):
		return []string{name + "." + clusterDomain + ".", name + "."}
	case strings.Count(name, ".") == 1:
		return []string{name + ".", name + ".svc." + clusterDomain + "."}
	default:
		return []string{name + "."}
	}
}

// validLabels reports whether an absolute name can be put into a message.
func validLabels(name string) bool {
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || len(label) > maxLabel {
			return false
		}
	}
	return true
}

// ask sends one question: first on a kept connection, if there is one, and on a
// new one if that yields nothing.
func (g *Guest) ask(ctx context.Context, f *Flight[Answer], name dnsmessage.Name) (reply, error) {
	if !g.enter(ctx, f) {
		return reply{}, context.Cause(ctx)
	}
	defer func() { <-g.slots }()
	if c := g.idle.get(); c != nil {
		tryCtx, cancel := context.WithTimeout(ctx, staleTry)
		out, err := g.askOn(tryCtx, f, c, name)
		cancel()
		if err == nil || errors.Is(err, errServFail) || ctx.Err() != nil {
			return out, err
		}
	}
	c, err := g.dial(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.Waited.Store(false) // it had the time to be refused
		}
		return reply{}, err
	}
	f.Reached.Store(true)
	return g.askOn(ctx, f, c, name)
}

// enter takes a slot. It returns false if ctx ended before there was one.
func (g *Guest) enter(ctx context.Context, f *Flight[Answer]) bool {
	select {
	case g.slots <- struct{}{}:
		return true
	default:
	}
	f.Waited.Store(true)
	select {
	case g.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *Guest) askOn(ctx context.Context, f *Flight[Answer], c *dnsConn, name dnsmessage.Name) (reply, error) {
	replies, whole, err := c.query(ctx, name)
	if whole {
		g.idle.put(c)
	} else {
		_ = c.conn.Close()
	}
	if err != nil {
		return reply{}, err
	}
	f.Reached.Store(true)
	return merge(replies)
}

func (g *Guest) dial(ctx context.Context) (*dnsConn, error) {
	servers, err := g.opt.Server(ctx)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, addr netip.Addr) (tunnel.Conn, error) {
		return g.opt.Dialer.Dial(ctx, tunnel.NewFlow("tcp", netip.AddrPortFrom(addr, dnsPort).String()))
	}
	c, _, err := race.Dial(ctx, servers, dial)
	if err != nil {
		return nil, err
	}
	return newDNSConn(c), nil
}

// merge combines the replies for all kinds into one outcome.
func merge(replies [len(kinds)]reply) (reply, error) {
	out := reply{ttl: maxPositive}
	var failed error
	gone := false
	for _, r := range replies {
		switch {
		case r.err != nil:
			failed = r.err
		case len(r.addrs) > 0:
			out.addrs = append(out.addrs, r.addrs...)
			out.ttl = min(out.ttl, r.ttl)
		default:
			gone = gone || r.gone
		}
	}
	if out.addrs = tidy(out.addrs); len(out.addrs) > 0 {
		if failed != nil {
			out.ttl = min(out.ttl, maxHalf)
		}
		return out, nil
	}
	if failed != nil && !gone {
		return reply{}, failed
	}
	for _, r := range replies {
		if r.err == nil {
			out.ttl = min(out.ttl, r.ttl)
		}
	}
	return out, nil
}
