package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/tlsreload"
	"konnectivity/server/frontend"
	"konnectivity/server/tenancy"
)

// retryPlaces is how long a tenant's port waits that could not be had.
const retryPlaces = 2 * time.Second

// atOnce is how many places are being opened at the same time, each with a descriptor or
// two.
const atOnce = 64

// place is a port or a socket of one tenant's.
type place struct {
	tenant string
	at     tenancy.Place
}

// door is a place that is open.
type door struct {
	front    *frontend.Frontend
	listener *noted
	cut      context.CancelCauseFunc // ends all that came by it
	broken   atomic.Bool             // it accepts nothing any more
}

// noted is a listener of which one can wait until it is closed.
type noted struct {
	net.Listener
	once   sync.Once
	closed chan struct{}
}

// Close implements net.Listener.
func (l *noted) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() { close(l.closed) })
	return err
}

// keeper has the places of tenants open on one side of the server. It is for one
// goroutine.
type keeper struct {
	tenants *tenants
	side    side
	life    context.Context // of connections
	open    map[place]*door
	running sync.WaitGroup // of open doors, and of those that connections are left of
}

// keepPlaces has what tenants listen on for themselves open until the server drains,
// and returns when all connections that came by it have ended. Before that it tells, as
// Frontend.Settle does, that all of them have begun.
func (t *tenants) keepPlaces(life context.Context, side side) {
	if t == nil {
		return
	}
	k := &keeper{tenants: t, side: side, life: life, open: make(map[place]*door)}
	defer k.running.Wait()
	for {
		var again <-chan time.Time
		if !k.settle() {
			again = time.After(retryPlaces)
		}
		select {
		case <-t.server.drains.Done():
			for _, d := range k.open {
				d.front.Drain()
			}
			for _, d := range k.open {
				d.front.Settle(life)
			}
			close(t.settled[side])
			return
		case <-t.moved[side]:
		case <-again:
		}
	}
}

// awaitSettled returns once nobody who came by a tenant's own place is still in the
// handshake of a server that drains, or when ctx has ended.
func (t *tenants) awaitSettled(ctx context.Context, side side) {
	if t == nil {
		return
	}
	select {
	case <-t.settled[side]:
	case <-ctx.Done():
	}
}

// settle closes what no tenant has any more, and opens what one has; false: not all
// of it could be had.
func (k *keeper) settle() bool {
	wanted := k.wanted()
	k.closeOthers(wanted)
	var missing []place
	for p := range wanted {
		if k.open[p] == nil {
			missing = append(missing, p)
		}
	}
	failed := make(map[string]error)
	for i, err := range k.openAll(missing) {
		if err != nil {
			p := missing[i]
			err = k.tenants.dir.Explain(p.tenant, &tenancy.FieldError{File: tenancy.SpecFile, Field: p.at.Field(), Err: err})
			if old := failed[p.tenant]; old == nil || err.Error() < old.Error() { // always the same one
				failed[p.tenant] = err
			}
		}
	}
	k.tenants.misplaced(k.side, failed)
	return len(failed) == 0
}

// closeOthers closes what is not wanted, and returns when another may have it.
func (k *keeper) closeOthers(wanted map[place]bool) {
	var closing []*door
	for p, d := range k.open {
		if d.broken.Load() {
			delete(k.open, p)
		} else if !wanted[p] {
			delete(k.open, p)
			k.close(p, d)
			closing = append(closing, d)
		}
	}
	for _, d := range closing {
		<-d.listener.closed
	}
}

// wanted are the places of all tenants on this side.
func (k *keeper) wanted() map[place]bool {
	all := make(map[place]bool)
	for name, tenant := range k.tenants.now.Load().table.Tenants() {
		for _, at := range tenant.Places() {
			if at.Agents == (k.side == agents) {
				all[place{name, at}] = true
			}
		}
	}
	return all
}

// close takes no more connections. Those that came by a port stay, as with a name
// that is taken away: a certificate has let them in. Nothing else than the socket has
// let in who came by it.
func (k *keeper) close(p place, d *door) {
	d.front.Drain()
	if p.at.Socket != "" {
		d.cut(errCut)
	}
}

// openAll opens places, and returns an error or nil for each. It opens many at once: a
// socket may take seconds whose folder another process has locked, and those of many
// tenants one after the other would take as many times that.
func (k *keeper) openAll(places []place) []error {
	doors, errs := make([]*door, len(places)), make([]error, len(places))
	var opening sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for i, p := range places {
		turn <- struct{}{}
		opening.Go(func() {
			defer func() { <-turn }()
			doors[i], errs[i] = k.openAt(p)
		})
	}
	opening.Wait()
	for i, p := range places {
		if errs[i] == nil {
			k.open[p] = doors[i]
		}
	}
	return errs
}

// openAt begins to listen. Any goroutine may call it.
func (k *keeper) openAt(p place) (*door, error) {
	s := k.tenants.server
	if s.opts.TenantListener == nil {
		return nil, errors.New("this server listens for no single tenant")
	}
	l, err := s.opts.TenantListener(p.at)
	if err != nil {
		return nil, err
	}
	d := &door{listener: &noted{Listener: l.Listener, closed: make(chan struct{})}}
	l.Listener = d.listener
	if d.front, err = k.front(p, l); err != nil {
		_ = l.Close()
		return nil, err
	}
	life, cut := context.WithCancelCause(k.life)
	d.cut = cut
	k.running.Go(func() {
		defer cut(nil)
		if err := d.front.Serve(life, l); err != nil {
			k.tenants.logOf(p.tenant).WithError(err).Error("the tenant's own listener failed; another takes its place")
			select {
			case <-time.After(retryPlaces):
			case <-s.drains.Done():
			}
			d.broken.Store(true)
			k.tenants.tellMoved(k.side)
		}
	})
	return d, nil
}

// front is for connections that are one tenant's by where they came in.
func (k *keeper) front(p place, l Listener) (*frontend.Frontend, error) {
	s := k.tenants.server
	cfg := s.frontConfig(k.side, l)
	switch {
	case l.TLSFor != nil:
		cfg.TLS = func(nextProtos ...string) *tls.Config {
			return l.TLSFor(k.tenants.chooserAt(k.side, p.tenant), nextProtos...)
		}
	case p.at.Socket != "":
		cfg.TLS, cfg.Owner = nil, func() (any, error) { return k.tenants.hostOf(p.tenant) }
	default:
		return nil, errors.New("a tenant's port needs TLS")
	}
	if k.side == agents {
		cfg.Room = s.agentFronts[0].Room()
		return s.agentFront(cfg)
	}
	cfg.Room = s.clientFronts[0].Room()
	return s.clientFront(cfg)
}

// hostOf is a tenant that is served. After an error, it is nil.
func (t *tenants) hostOf(name string) (any, error) {
	now := t.now.Load()
	if h := now.hosts[now.table.Tenant(name)]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("it came in where the tenant %q listens, which is broken or was removed", name)
}

// chooserAt has all that come in by a tenant's own port be the tenant's, except for
// those that ask for another tenant by name: a name that leads to the wrong port is
// not to lead to the wrong cluster.
func (t *tenants) chooserAt(side side, name string) tlsreload.Choose {
	return func(hello *tls.ClientHelloInfo) (*tlsreload.Guest, error) {
		now := t.now.Load()
		own := now.table.Tenant(name)
		who, err := t.hostOf(name)
		if asked, known := now.table.Find(hello.ServerName); err == nil && known && asked != own {
			err = fmt.Errorf("it came in by the port of the tenant %q, and asked for %.100q, which is not its", name, hello.ServerName)
		}
		if err != nil {
			_ = frontend.Own(hello, nil, err) // for the log; it is refused anyway
			return nil, err
		}
		guest := who.(*host).inside[side]
		if guest == nil {
			return nil, errors.New("the tenant has given up the port")
		}
		if !frontend.Own(hello, who, nil) {
			return nil, errNotNoted
		}
		return guest, nil
	}
}

// tellMoved has a side's keeper look again.
func (t *tenants) tellMoved(side side) {
	select {
	case t.moved[side] <- struct{}{}:
	default:
	}
}

// misplaced notes which tenants' places could not be had, and logs what is new.
func (t *tenants) misplaced(side side, failed map[string]error) {
	t.mu.Lock()
	was := t.unplaced[side]
	t.unplaced[side] = failed
	t.mu.Unlock()
	for name, err := range failed {
		if old := was[name]; old == nil || old.Error() != err.Error() {
			t.logOf(name).WithError(err).Error("the server cannot listen for the tenant as it asks; it tries again and again")
		}
	}
	for name := range was {
		if failed[name] == nil && t.now.Load().table.Tenant(name) != nil {
			t.logOf(name).Info("the server listens for the tenant as it asks")
		}
	}
}

// seen is a tenant's status, with what the server has found wrong besides.
func (t *tenants) seen(s tenancy.Status) tenancy.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	for side := range sides {
		if err := t.unplaced[side][s.Name]; err != nil && s.State == tenancy.StateServing {
			s.State, s.Error, s.Told = tenancy.StateStale, err.Error(), err.Error()
		}
	}
	return s
}
