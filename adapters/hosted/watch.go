package hosted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/wait"
)

const (
	// listTime bounds a list, and the wait for a watch to begin.
	listTime = 30 * time.Second

	// maxServices bounds how many Services are kept. In a cluster with more,
	// each is requested by itself.
	maxServices = 50_000

	// watchTime is how long one watch lasts, until the API ends it.
	watchTime = 5 * time.Minute

	// watchGrace is how much longer we wait for the API to do so, and watchEarly how much
	// earlier it may, by a clock that is faster than ours.
	watchGrace = 30 * time.Second
	watchEarly = time.Second

	// otherEvery is how often a watch looks whether its kubeconfig is still in use:
	// with the watch, nothing else asks.
	otherEvery = 30 * time.Second

	// firstPause and maxPause bound the pause after a failure; forbidPause is
	// for an API that forbids watches, which seldom changes for one kubeconfig.
	firstPause  = time.Second
	maxPause    = 30 * time.Second
	forbidPause = 5 * time.Minute
)

// table holds the Services that a watch has seen.
type table struct {
	mu      sync.Mutex
	addrs   map[string][]netip.Addr
	current bool // a watch follows them at present
}

// get returns the addresses of a Service, and whether they are current: then a
// Service that is not there does not exist.
func (t *table) get(key string) (addrs []netip.Addr, current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addrs[key], t.current
}

func (t *table) replace(addrs map[string][]netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addrs = addrs
}

func (t *table) setCurrent(current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = current
}

func (t *table) apply(what kubeapi.Event, s *kubeapi.Service) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch key := joinKey(s); what {
	case kubeapi.Deleted:
		delete(t.addrs, key)
	case kubeapi.Added, kubeapi.Modified:
		if t.addrs[key] = addrsOf(s); len(t.addrs) > maxServices {
			return errTooMany
		}
	}
	return nil
}

func joinKey(s *kubeapi.Service) string { return s.Namespace + "/" + s.Name }

func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

var errTooMany = fmt.Errorf("the hosted cluster has more than %d Services", maxServices)

// Run lists and watches Services from the first lookup on, until ctx ends.
// Failures are retried without a log line; meanwhile lookups are single GETs.
func (s *Services) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.wanted:
	}
	pause := firstPause
	for ctx.Err() == nil {
		start, access := time.Now(), s.client.inUse()
		err := s.follow(ctx)
		s.table.setCurrent(false)
		if time.Since(start) > maxPause {
			pause = firstPause
		}
		wait := pause
		switch {
		case isStatus(err, http.StatusForbidden, http.StatusUnauthorized, http.StatusMethodNotAllowed), errors.Is(err, errTooMany):
			wait = forbidPause
		case isStatus(err, http.StatusGone), errors.Is(err, errOther):
			wait = firstPause
		default:
			pause = min(2*pause, maxPause)
		}
		if ctx.Err() == nil {
			s.log.WithError(err).Debug("cannot watch the hosted cluster's Services; getting each one when it is needed")
		}
		resting, rested := context.WithTimeout(ctx, wait+rand.N(wait/4+1))
		if wait == forbidPause {
			s.awaitOther(resting, access) // which may have more rights
		} else {
			<-resting.Done()
		}
		rested()
	}
}

// errOther ends the following of an API that is not the one to ask any more. Versions
// of one API mean nothing to another.
var errOther = errors.New("the kubeconfig has changed")

// follow lists, then watches until something goes wrong. A watch that told nothing, not
// even a bookmark, may be of versions that begin anew below ours, as behind a restore of
// the API's etcd, and the next would be silent until they get there: all is listed anew.
func (s *Services) follow(ctx context.Context) error {
	access, err := s.client.current()
	if err != nil {
		return err
	}
	for version := ""; ; {
		if version == "" {
			addrs, listed, err := list(ctx, access)
			if err != nil {
				return err
			}
			s.table.replace(addrs)
			s.outage.note(nil)
			version = listed
		}
		next, err := s.watch(ctx, access, version)
		switch {
		case s.client.inUse() != access:
			return errOther
		case err != nil:
			return err
		case next == version:
			next = ""
		}
		version = next
	}
}

// list reads all Services, page by page.
func list(ctx context.Context, from *access) (map[string][]netip.Addr, string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	all := make(map[string][]netip.Addr)
	for opts := (kubeapi.ListOptions{Limit: kubeapi.ServicesPage}); ; {
		page, err := from.services.List(ctx, opts)
		if err != nil {
			return nil, "", err
		}
		for _, s := range page.Items {
			all[joinKey(s)] = addrsOf(s)
		}
		if len(all) > maxServices {
			return nil, "", errTooMany
		}
		if opts.Continue = page.Metadata.Continue; opts.Continue == "" {
			return all, page.Metadata.ResourceVersion, nil
		}
	}
}

// errCut ends a watch that has not lasted as long as was asked for: its connection was lost,
// or the API server is going.
var errCut = errors.New("the watch ended early")

// watch follows changes from version on until the API ends the watch in order,
// and returns the version to go on from. It ends soon after another access than the
// one given is in use.
func (s *Services) watch(ctx context.Context, access *access, version string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchGrace)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	start, full := time.Now(), error(nil)
	err := access.services.Watch(ctx, kubeapi.WatchOptions{From: version, Time: watchTime}, func() {
		looking.Go(func() { s.awaitOther(ctx, access); cancel() })
		s.table.setCurrent(true)
	}, func(what kubeapi.Event, service *kubeapi.Service) {
		if full != nil { // what was read ahead
			return
		}
		if full = s.table.apply(what, service); full != nil {
			cancel()
		}
		version = cmp.Or(service.ResourceVersion, version)
	})
	if err = cmp.Or(full, err); err == nil && time.Since(start) < s.lasts-watchEarly {
		err = errCut
	}
	return version, err
}

// awaitOther returns once another access is in use, or ctx has ended.
func (s *Services) awaitOther(ctx context.Context, access *access) {
	for s.client.inUse() == access && wait.For(ctx, s.look) {
	}
}
