package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/internal/wait"
	"konnectivity/server/frontend"
	"konnectivity/server/tenant"
)

// retryListen is how long a tenant's port or socket waits that the server cannot have.
const retryListen = 2 * time.Second

// maxOpening is how many listeners are opened at the same time, each with a
// descriptor or two.
const maxOpening = 64

// address is a port or a socket of one tenant.
type address struct {
	tenant string
	at     tenant.Address
}

// door is an address at which the server listens.
type door struct {
	front  *frontend.Frontend
	cut    context.CancelCauseFunc // ends all connections that came by it
	broken atomic.Bool             // it accepts nothing any more
}

// listeners keeps the tenants' own ports and sockets of one side open. One goroutine
// uses it.
type listeners struct {
	tenants *tenants
	side    side
	life    context.Context // of connections
	open    map[address]*door
	running sync.WaitGroup // doors that are open, or have connections left
}

// keepListeners keeps what tenants listen on for themselves open until the server
// drains, and returns when all connections that came by it have ended. Before that it
// tells, as Frontend.Settle does, that all of them have begun.
func (t *tenants) keepListeners(life context.Context, side side) {
	k := &listeners{tenants: t, side: side, life: life, open: make(map[address]*door)}
	defer k.running.Wait()
	for {
		var again <-chan time.Time
		if !k.settle() {
			again = time.After(retryListen)
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

// awaitSettled returns when, in a drain, all handshakes at tenants' own addresses have
// ended, or ctx has.
func (t *tenants) awaitSettled(ctx context.Context, side side) {
	select {
	case <-t.settled[side]:
	case <-ctx.Done():
	}
}

// settle closes what no tenant has any more, and opens what one has; false: not all
// of it could be had.
func (k *listeners) settle() bool {
	wanted := k.wanted()
	k.closeOthers(wanted)
	var missing []address
	for p := range wanted {
		if k.open[p] == nil {
			missing = append(missing, p)
		}
	}
	failed := make(map[string]error)
	for i, err := range k.openAll(missing) {
		if err != nil {
			p := missing[i]
			err = k.tenants.dir.Explain(p.tenant, &tenant.FieldError{File: tenant.SettingsFile, Field: p.at.Field(), Err: err})
			if old := failed[p.tenant]; old == nil || err.Error() < old.Error() { // always the same one
				failed[p.tenant] = err
			}
		}
	}
	k.tenants.noteFaults(k.side, failed)
	return len(failed) == 0
}

// closeOthers closes addresses that are not wanted, and returns when they are free.
func (k *listeners) closeOthers(wanted map[address]bool) {
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
		<-d.front.Stopped()
	}
}

// wanted are the addresses of all tenants on this side.
func (k *listeners) wanted() map[address]bool {
	all := make(map[address]bool)
	for name, spec := range k.tenants.now.Load().table.Tenants() {
		for _, at := range spec.Addresses() {
			if at.Agents == (k.side == agents) {
				all[address{name, at}] = true
			}
		}
	}
	return all
}

// close accepts no more connections. Those that came by a port stay, as with a name
// that is taken away: their certificate has admitted them. Those that came by a socket
// are cut: the socket alone has admitted them.
func (k *listeners) close(p address, d *door) {
	d.front.Drain()
	if p.at.Socket != "" {
		d.cut(errCut)
	}
}

// openAll opens addresses, and returns an error or nil for each. It opens many at once: a
// socket may take seconds whose folder another process has locked, and those of many
// tenants one after the other would take as many times that.
func (k *listeners) openAll(at []address) []error {
	doors, errs := make([]*door, len(at)), make([]error, len(at))
	var opening errgroup.Group
	opening.SetLimit(maxOpening)
	for i, p := range at {
		opening.Go(func() error {
			doors[i], errs[i] = k.openAt(p)
			return nil
		})
	}
	_ = opening.Wait()
	for i, p := range at {
		if errs[i] == nil {
			k.open[p] = doors[i]
		}
	}
	return errs
}

// openAt begins to listen. Any goroutine may call it.
func (k *listeners) openAt(p address) (*door, error) {
	s := k.tenants.server
	if s.opts.TenantListener == nil {
		return nil, errors.New("this server listens for no single tenant")
	}
	l, err := s.opts.TenantListener(p.at)
	if err != nil {
		return nil, err
	}
	d := new(door)
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
			wait.For(s.drains, retryListen)
			d.broken.Store(true)
			k.tenants.tellMoved(k.side)
		}
	})
	return d, nil
}

// front is for connections that are one tenant's by where they came in.
func (k *listeners) front(p address, l Listener) (*frontend.Frontend, error) {
	s := k.tenants.server
	cfg := s.frontConfig(k.side, l)
	switch {
	case l.TLS != nil:
		cfg.TLS = l.by(k.tenants.chooserAt(k.side, p.tenant))
	case p.at.Socket != "":
		cfg.TLS, cfg.Owner = nil, func() (any, error) {
			is, err := k.tenants.named(p.tenant)
			if err != nil {
				return nil, err
			}
			return is, nil
		}
	default:
		return nil, errors.New("a tenant's port needs TLS")
	}
	cfg.Room = s.fronts[k.side][0].Room()
	return s.front(k.side, nil, cfg)
}

// tellMoved makes a side's listeners compare the open addresses with the wanted ones.
func (t *tenants) tellMoved(side side) {
	wait.Signal(t.moved[side])
}

// noteFaults records why tenants cannot listen as they ask, and logs new faults.
func (t *tenants) noteFaults(side side, failed map[string]error) {
	was := t.now.Load().faults[side] // which only this goroutine replaces
	t.replace(func(v *view) { v.faults[side] = failed })
	for name, err := range failed {
		if old := was[name]; old == nil || old.Error() != err.Error() {
			t.logOf(name).WithError(err).Error("the server cannot listen for the tenant as it asks; it tries again and again")
		}
	}
	for name := range was {
		if failed[name] == nil && t.now.Load().tenants[name] != nil {
			t.logOf(name).Info("the server listens for the tenant as it asks")
		}
	}
}
