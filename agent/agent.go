package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Agent stays connected to a set of servers and serves their dials.
type Agent struct {
	opts    Options
	metrics *metrics
	ends    *resume.Manager
	set     *set
	api     *apiFront // nil: the node's programs do not reach their API server here

	forwarder *tunnel.Forwarder
	adopter   tunnel.Forwarder // of connections that another process has dialed; without a Dialer
	judge     judge            // nil: all may go on
}

// New returns an agent that does nothing yet. An error is that of a metric which cannot be
// registered.
func New(opts Options) (*Agent, error) {
	opts.fill()
	m, err := newMetrics(opts)
	if err != nil {
		return nil, err
	}
	for _, warning := range identifierWarnings(opts.Identifiers) {
		opts.Log.Warn(warning)
	}
	forwarder := &tunnel.Forwarder{
		Dialer:      opts.Dialer,
		DialTimeout: opts.DialTimeout,
		Total:       &m.totals,
		Observers:   append([]tunnel.Observer{m}, opts.Observers...),
	}
	a := &Agent{opts: opts, metrics: m, forwarder: forwarder}
	opts.Handover.setID(opts.ID)
	ends := resume.Options{Window: opts.ResumeWindow, Budget: opts.Budget, Log: opts.Log, MaxDetached: alone(opts.Budget, admission.Descriptors())}
	if judge, ok := opts.Dialer.(judge); ok {
		a.judge, ends.Allow = judge, judge.Allow
		forwarder.Flows = &tunnel.Flows{Judge: judge.Still}
	}
	a.adopter = *forwarder
	a.adopter.Observers = nil
	for _, o := range forwarder.Observers {
		a.adopter.Observers = append(a.adopter.Observers, adopted{o})
	}
	a.ends = resume.New(ends)
	a.set = newSet(opts, newConnector(opts, forwarder, m, a.ends).connect, m)
	if a.api, err = newAPIFront(opts, a.set); err != nil {
		return nil, err
	}
	return a, observe.Resuming(opts.Registerer, MetricsPrefix, a)
}

// Resuming returns the figures of connections that outlive their links: of those that servers
// have asked for, and of those that the node's programs have.
func (a *Agent) Resuming() resume.Stats { return a.ends.Stats().Plus(a.set.opened.Stats()) }

// OnResume has f told of the pauses of all of them.
func (a *Agent) OnResume(f func(pause time.Duration)) {
	a.ends.OnResume(f)
	a.set.opened.OnResume(f)
}

// judge is a Dialer that judges connections which are there already.
type judge interface {
	// Allow is asked whether one could be dialed now.
	Allow(f *tunnel.Flow, connected net.Addr) error
	// Still is Allow for one that is open here, at f.Far.
	Still(f *tunnel.Flow) error
	// Adopt is Allow for one that another process has dialed. It counts from then on.
	Adopt(f *tunnel.Flow, connected net.Addr) error
}

// aloneMemory is what of the budget there is for a connection that waits for its
// opener. It takes more, but so it did before it lost its link: this is to end what
// openers leave behind on purpose, and not what a link takes along.
const aloneMemory = 4 << 10

// alone is how many connections may wait for their openers at once: as many as there
// is memory for, and no more than connections may have descriptors. An
// opener may make one after the other and leave each, so that no bound of a server's
// counts them.
func alone(budget *link.Budget, descriptors int) int {
	return admission.AtMost(int(budget.Max()/aloneMemory), admission.ShareOut(descriptors).Destinations)
}

// Run connects and serves until ctx ends. Then it drains: it tells the servers to dial
// through others, and waits until no connection has been open for a moment, at most for
// Options.Grace, before it closes everything and returns nil. While connections are open
// that outlive their links, it goes on to connect to servers. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	defer a.opts.Handover.start(ctx, a)()
	a.opts.Store.adopt(a)
	defer a.serveAPI(ctx)()
	a.set.start()
	<-ctx.Done()
	a.drain(context.Cause(ctx) == errRestart && a.opts.Store != nil)
	return nil
}

// serveAPI serves the node's programs until end, which is called after the drain: while
// an agent drains, there may be no other on the node.
func (a *Agent) serveAPI(ctx context.Context) (end func()) {
	if a.api == nil {
		return func() {}
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	wait := a.api.serve(life, a.opts.API, a.opts.Log)
	return func() {
		cancel()
		wait()
	}
}

// serve returns what serves a connection that another process has dialed.
func (a *Agent) serve(far tunnel.Conn) tunnel.Handler {
	f := a.adopter
	f.Dialer = tunnel.DialerFunc(func(_ context.Context, flow *tunnel.Flow) (tunnel.Conn, error) {
		if a.judge != nil {
			if err := a.judge.Adopt(flow, far.RemoteAddr()); err != nil {
				_ = far.Reset(err)
				return nil, err
			}
		}
		return far, nil
	})
	return &f
}

// adopted is an Observer that hears of no dial that this process has not made.
type adopted struct{ tunnel.Observer }

// Dialed implements tunnel.Observer. It reports connections that the policy forbids.
func (o adopted) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if err != nil {
		o.Observer.Dialed(f, took, err)
	}
}

// Rejudge is called when other rules are in force: it ends the open connections that they do
// not allow. It may be called from any goroutine.
func (a *Agent) Rejudge() {
	if n := a.forwarder.Flows.JudgeAll(); n > 0 {
		a.opts.Log.WithField("connections", n).Warn("open connections were ended that the new policy does not allow")
	}
}

// Retry tries servers that could not be reached again at once, for instance
// because the certificates have changed.
func (a *Agent) Retry() { a.set.peers.Retry() }

// Rerouted is for a caller who knows that addresses or routes of this machine have changed.
func (a *Agent) Rerouted() { a.set.peers.Rerouted() }

// Ready is nil while a server is connected, else an error that says so.
func (a *Agent) Ready() error {
	if len(a.set.status()) > 0 {
		return nil
	}
	return errors.New("no servers connected")
}

// Trouble is Ready with the reason: why the server that was tried last could not
// be connected to. It is for operators and may name addresses.
func (a *Agent) Trouble() error {
	err := a.Ready()
	if err == nil {
		return nil
	}
	if why := a.set.trouble(); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// Servers returns the present connections, ordered by id. It may be called from
// any goroutine.
func (a *Agent) Servers() []admin.Peer { return a.set.status() }

const (
	// drainQuiet is how long nothing may be open before a draining agent
	// goes: longer than DRAIN takes to a far server, so that a dial that
	// crossed it on the way is still served.
	drainQuiet = time.Second
	// drainPoll is the pause between two looks.
	drainPoll = 50 * time.Millisecond
)

// drain ends the sessions that run left, gracefully. If it is to store them, connections
// that the next process can have are served until the others have ended.
func (a *Agent) drain(store bool) {
	defer a.set.opened.Wait()
	defer a.ends.Wait()
	defer a.set.close()
	defer a.set.opened.Close()
	defer a.ends.Close()
	if a.opts.Grace < 0 && a.opts.Handover == nil && !store {
		return
	}
	start := time.Now()
	draining := "draining: servers were told to use other agents"
	if len(a.Servers()) == 0 {
		draining = "draining: no server is connected that would have to be told"
	}
	streams := a.set.drain()
	defer a.opts.Handover.finish()
	a.opts.Handover.give(a)
	a.opts.Log.WithField("open", streams).Info(draining)
	a.settle(start, store)
	if store && !a.opts.Store.keep(a) {
		a.settle(start, false)
	}
}

// settle waits until nothing has been open for a moment, but for what can be stored. It
// returns at the end of the grace period at the latest.
func (a *Agent) settle(start time.Time, store bool) {
	if a.opts.Grace < 0 {
		return
	}
	quiet := time.Now()
	for now := quiet; now.Sub(quiet) < drainQuiet; now = time.Now() {
		outlive := a.ends.Len() > 0
		a.set.look(outlive) // no other server could carry the rest
		if !outlive && a.set.gone() {
			break
		}
		if now.Sub(start) >= a.opts.Grace {
			a.opts.Log.WithField("open", a.open(store)).Warn(fmt.Sprintf("connections are still open after the grace period of %v and are cut", a.opts.Grace))
			return
		}
		time.Sleep(drainPoll)
		a.opts.Handover.give(a) // dials may have become connections
		if a.open(store) > 0 {
			quiet = time.Now()
		}
	}
	a.opts.Log.Info("drained")
}

// open is how many dials and connections there are: with those that wait for a link,
// and those whose stream has ended and of which the destination has yet to take the
// rest. Of two of these numbers, one may hide what the other lacks: those that can be
// stored are taken off each.
func (a *Agent) open(store bool) int {
	movable, connected := 0, 0
	if store {
		movable, connected = a.ends.Movable()
	}
	streams := a.set.streams() - movable
	if a.api != nil {
		streams -= a.api.front.Slots.Count() // which do not end by themselves
	}
	return max(streams, a.ends.Len()-movable, int(a.metrics.open.Load())-connected)
}
