package tenant

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/tlsreload"
	"konnectivity/internal/wait"
)

const (
	// lookEvery is the interval of looks at the source. A tenant is removed once two
	// looks in a row do not find it. A file that is rewritten in place is noticed
	// within filesEvery looks.
	lookEvery = 2 * time.Second

	// filesEvery is how many looks pass from one at a tenant's files to the next. Its
	// folder, at which every look looks, shows files that are added, removed or
	// replaced. It does not show that a file was written to, and there are thousands of
	// files, each of which costs a system call.
	filesEvery = 3

	// maxTenants bounds how many tenants are followed: well above what one
	// process can serve.
	maxTenants = 20000

	// maxRefused bounds how many names of tenants that are gone are remembered.
	// Beyond it, all names that no tenant has are refused: the peers of a forgotten
	// one would reach the server's own cluster.
	maxRefused = 100000
)

// Dir is the directory of all tenants, which follows their source: a folder with
// a folder for each, or Secrets. Make it with Open or OpenSecrets and keep Run
// running. All methods may be called from any goroutine.
type Dir struct {
	source source
	log    logrus.FieldLogger

	table atomic.Pointer[Table]

	looking sync.Mutex // held during a look; guards all fields below
	looks   uint       // so far
	entries map[string]*entry
	served  map[string]string // all server names that ever were a tenant's, and whose last
	fault   string            // why the source could not be listed, as logged
	changed func(*Table)
}

// Open reads all folders of a folder. It fails only if they cannot be listed;
// tenants that are broken are logged, and in States.
func Open(path string, log logrus.FieldLogger) (*Dir, error) {
	d := newDir(folders(path), log)
	names, err := d.list()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, bare(err))
	}
	d.update(names, true)
	return d, nil
}

func newDir(s source, log logrus.FieldLogger) *Dir {
	d := &Dir{source: s, log: log, entries: make(map[string]*entry), served: make(map[string]string)}
	d.table.Store(&Table{})
	return d
}

// Explain adds to an error of a tenant's files what it does not say of where it is.
func (d *Dir) Explain(tenant string, err error) error { return d.source.explain(tenant, err) }

// Table is what there is now.
func (d *Dir) Table() *Table { return d.table.Load() }

// OnChange has f called with each new Table, in their order, after it is in
// force. It is called at once with the present one. There can be one f.
func (d *Dir) OnChange(f func(*Table)) {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.changed = f
	f(d.table.Load())
}

// Run follows the source until ctx ends.
func (d *Dir) Run(ctx context.Context) {
	wait.Every(ctx, lookEvery, func() { d.look(false) })
}

// Look looks at all files of all tenants now. Changes are in force when it returns;
// removals only after two looks.
func (d *Dir) Look() { d.look(true) }

// look looks at all tenants, but unless it is whole only at the files of those
// whose turn it is.
func (d *Dir) look(whole bool) {
	d.looking.Lock()
	defer d.looking.Unlock()
	names, err := d.list()
	if err != nil {
		if text := err.Error(); text != d.fault {
			d.fault = text
			d.log.WithError(err).Errorf("the tenants' %ss cannot be listed; %s", d.source.kind(), d.meanwhile())
		}
		return
	}
	if d.fault != "" {
		d.fault = ""
		d.log.Infof("the tenants' %ss can be listed again", d.source.kind())
	}
	d.update(names, whole)
}

// meanwhile is what becomes of tenants that cannot be listed.
func (d *Dir) meanwhile() string {
	if d.Table().Listed() {
		return "all tenants are served as before"
	}
	return "no tenant is served until they can be"
}

// list returns the tenants' names.
func (d *Dir) list() ([]string, error) {
	names, err := d.source.list()
	if err == nil && len(names) > maxTenants {
		err = fmt.Errorf("there are %d tenants, and at most %d are served", len(names), maxTenants)
	}
	return names, err
}

// update reads the tenants that may have changed and puts a new Table into force.
func (d *Dir) update(names []string, whole bool) {
	now := time.Now()
	d.looks++
	news := !d.table.Load().Listed()
	for _, name := range names {
		e := d.entries[name]
		if e == nil {
			e = &entry{since: now, phase: rand.N(rereadEvery)}
			d.entries[name] = e
		}
		e.seen = d.looks
		news = d.lookAt(name, e, now, whole || d.due(e)) || news
		d.warnExpired(name, e, now)
	}
	for name, e := range d.entries {
		if e.seen == d.looks {
			continue
		}
		if e.gone++; e.gone > 1 {
			delete(d.entries, name)
			d.log.WithField("tenant", name).Info("the tenant was removed")
			news = true
		}
	}
	if news {
		d.publish(d.settle(now))
	}
}

// due reports whether this look is at the tenant's files.
func (d *Dir) due(e *entry) bool { return (d.looks+uint(e.phase))%filesEvery == 0 }

// lookAt reads a tenant's files if they may have changed, by a look at files or at
// their folder alone; true is news.
func (d *Dir) lookAt(name string, e *entry, now time.Time, files bool) (news bool) {
	holds := e.gone == 0 && e.stamp != nil && e.stamp.holds(now.Sub(e.read))
	if holds && d.source.still(name, e.stamp, files) {
		return false
	}
	f, err := d.source.open(name)
	if err != nil {
		e.stamp = nil // so that it is read as soon as it can be
		return e.failed(err, now)
	}
	defer f.close()
	before, err := f.stamp(now)
	if err != nil {
		e.stamp = nil
		return e.failed(err, now)
	}
	if holds && before.same(e.stamp) {
		if before.holds(0) {
			e.stamp = before // of a list of files that may be newer
		}
		return false
	}
	tenant := e.serving
	if !tenant.unchanged(f.read) {
		tenant, err = parse(name, f.read)
		tenant.forget()
	}
	after, stampErr := f.stamp(now)
	if stampErr != nil {
		after = nil
	}
	return e.learn(tenant, err, before, after, now)
}

// settle decides which readings are served: those that claim nothing of another
// tenant's. Who has a name, a CA or a port keeps it until it is served by a reading
// that goes without. It returns what those that are served have then.
func (d *Dir) settle(now time.Time) owners {
	owned := make(owners)
	for _, e := range d.entries {
		owned.add(e.serving)
	}
	names := slices.Sorted(maps.Keys(d.entries))
	for again := true; again; { // what one gives up another may take
		again = false
		for _, name := range names {
			again = d.serve(d.entries[name], owned, now) || again
		}
		again = again || d.exchange(names, owned, now)
	}
	for name, e := range d.entries {
		d.tell(name, e)
	}
	return owned
}

// serve has a tenant's new reading served, unless it claims what another has. It
// says whether it did.
func (d *Dir) serve(e *entry, owned owners, now time.Time) bool {
	if e.parsed == nil || e.parsed == e.serving {
		return false
	}
	owned.remove(e.serving)
	if err := e.parsed.taken(owned); err != nil {
		owned.add(e.serving)
		e.err = err
		return false
	}
	owned.add(e.parsed)
	d.apply(e, now)
	return true
}

// apply has a tenant's new reading served.
func (d *Dir) apply(e *entry, now time.Time) {
	for _, server := range e.parsed.ServerNames {
		if len(d.served) <= maxRefused { // beyond, all names that no tenant has are refused
			d.served[server] = e.parsed.Name
		}
	}
	e.serving, e.last, e.err, e.since = e.parsed, e.parsed, nil, now
	e.old, e.expired = false, 0
}

// tell logs the state of a tenant when it has changed.
func (d *Dir) tell(name string, e *entry) {
	said := fmt.Sprint(e.state(), e.err)
	if e.serving != nil && e.err == nil {
		said = fmt.Sprintf("%x", e.serving.digest)
	}
	if said == e.said {
		return
	}
	first := e.said == ""
	e.said = said
	log := d.log.WithField("tenant", name)
	err := e.err
	if err != nil {
		err = d.source.explain(name, err)
	}
	switch {
	case e.serving != nil && e.err == nil && first:
		log.Info("the tenant is served")
	case e.serving != nil && e.err == nil:
		log.Info("the tenant has changed")
	case e.serving != nil:
		log.WithError(err).Warnf("the tenant's %s cannot be used as it is now; it is served as before", d.source.kind())
	default:
		log.WithError(err).Errorf("the tenant is refused: its %s cannot be used", d.source.kind())
	}
}

// warnExpired logs, once for each reading, that the served revocation lists are out of date,
// and of each file that a certificate has expired. All are used nevertheless: it may be our clock
// that is wrong. What is good once the clock was set is logged again should it expire.
func (d *Dir) warnExpired(name string, e *entry, now time.Time) {
	if e.serving == nil {
		return
	}
	until := e.serving.ListsUntil()
	old := !until.IsZero() && now.After(until)
	if old && !e.old {
		d.log.WithField("tenant", name).WithField("expired", until.UTC().Format(time.RFC3339)).Warn(tlsreload.OutdatedLists)
	}
	expired := 0
	for _, x := range e.serving.Expiries {
		if !now.After(x.Until) {
			break
		}
		if expired++; expired > e.expired {
			d.log.WithFields(logrus.Fields{"tenant": name, "file": x.File, "expired": x.Until.UTC().Format(time.RFC3339)}).Warn(tlsreload.ExpiredCertificate)
		}
	}
	e.old, e.expired = old, expired
}

// warnShared logs, as it begins, that a tenant's reader sees nothing, since another tenant's has
// the same token.
func (d *Dir) warnShared(t *Table) {
	for name, e := range d.entries {
		shown, known := t.readers[e.reader]
		shares := known && shown == ""
		if shares && !e.shares {
			d.log.WithField("tenant", name).Warn("the tenant's " + ReaderFile + " is another tenant's, too, and so shows nothing; give each its own")
		}
		e.shares = shares
	}
}

// publish puts a new Table into force.
func (d *Dir) publish(owned owners) {
	t := &Table{
		byName: make(map[string]*Spec), refused: make(map[string]string), tenants: make(map[string]*Spec, len(d.entries)),
		owned: owned, closed: len(d.served) > maxRefused, listed: true,
	}
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		e := d.entries[name]
		status := Status{Name: name, State: e.state(), Since: e.since, ServerNames: e.names, Spec: e.serving}
		if e.err != nil {
			status.Error, status.Told = d.source.explain(name, e.err).Error(), told(e.err)
		}
		if e.serving != nil {
			t.tenants[name] = e.serving
			status.ServerNames = e.serving.ServerNames
			for _, server := range e.serving.ServerNames {
				t.byName[server] = e.serving
			}
		}
		t.states = append(t.states, status)
		for _, server := range e.names {
			t.refused[server] = name // those that are served are found first
		}
	}
	t.readers = readersOf(d.entries)
	d.warnShared(t)
	t.agentsBy, t.clientsBy = newIssuers(t.tenants, agentsOf), newIssuers(t.tenants, clientsOf)
	if !t.closed {
		maps.Copy(t.refused, d.served)
	}
	if t.closed && !d.Table().Closed() {
		d.log.Errorf("more than %d server names were tenants' since the server started: from now on peers that ask for any other name are refused, until it is restarted", maxRefused)
	}
	d.table.Store(t)
	if d.changed != nil {
		d.changed(t)
	}
}
