package kubeapi

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"konnectivity/internal/wait"
)

const (
	pageSize = 100              // objects that are listed at once
	pageTime = 10 * time.Second // for each page

	// watchTime is how long one watch lasts, so that API servers that are new
	// get their part of them. One that goes on for watchGrace beyond it is dead.
	watchTime  = 5 * time.Minute
	watchGrace = 30 * time.Second

	// leastPause is between two watches, and doubles up to mostPause while they
	// end at once. Each is up to a half longer by chance.
	leastPause = time.Second
	mostPause  = 8 * time.Second
)

// errUnlisted is why nothing is known at first.
var errUnlisted = errors.New("the API has not been asked yet")

// MirrorAPI is what a Mirror needs of the API; Objects is one.
type MirrorAPI[T Object] interface {
	List(ctx context.Context, opts ListOptions) (*List[T], error)
	Watch(ctx context.Context, opts WatchOptions, began func(), take func(Event, T)) error
	String() string // where the objects are
}

// Mirrored is an Object with all of its Metadata.
type Mirrored interface {
	Object
	metadata() *Metadata
}

// Mirror has the objects of one namespace, or of none, that selectors select as the API
// last had them, by a watch. Make it with NewMirror and keep Run running. Its methods may
// be called from any goroutine.
type Mirror[T Mirrored] struct {
	api            MirrorAPI[T]
	labels, fields string // selectors; "": all

	// Of List's and Run's goroutine:
	version string    // to watch from; "": list first
	heard   time.Time // when the API last sent anything, a bookmark included

	mu    sync.Mutex
	held  map[string]T
	fault error // why held may not be what the API has; nil: it is
}

// NewMirror returns one that has nothing yet, and is to have what both selectors select.
func NewMirror[T Mirrored](api MirrorAPI[T], labels, fields string) *Mirror[T] {
	return &Mirror[T]{api: api, labels: labels, fields: fields, fault: errUnlisted}
}

// String says where the objects are.
func (m *Mirror[T]) String() string { return m.api.String() }

// Names are the names of all, in a new slice. An error says why they may not be
// what the API has by now: it is away, or refuses to tell.
func (m *Mirror[T]) Names() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.held)), m.fault
}

// Get is an object, which must not be modified; false: there is none of that name.
func (m *Mirror[T]) Get(name string) (object T, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	object, found = m.held[name]
	return object, found
}

// Run follows the objects until ctx ends. While the API is away it tries again.
func (m *Mirror[T]) Run(ctx context.Context) {
	for pause := leastPause; ctx.Err() == nil; {
		began := time.Now()
		if err := m.follow(ctx); err != nil && ctx.Err() == nil {
			m.fail(err)
		}
		if time.Since(began) > mostPause {
			pause = leastPause
		}
		wait.For(ctx, pause+rand.N(pause/2))
		pause = min(2*pause, mostPause)
	}
}

// fail notes why held may not be what the API has. Of several errors of one kind
// the first is kept: those of connections differ in their ports.
func (m *Mirror[T]) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == nil || m.fault == errUnlisted || ReasonOf(m.fault) != ReasonOf(err) {
		m.fault = err
	}
}

// follow watches until the API ends that, from where it was left. One that has been
// silent for a whole watch may be of versions that begin anew below ours, as behind a
// restore of its etcd, and would stay silent until they get there.
func (m *Mirror[T]) follow(ctx context.Context) error {
	if m.version == "" || time.Since(m.heard) >= watchTime {
		if err := m.List(ctx); err != nil {
			return err
		}
	}
	err := m.watch(ctx)
	if reason := ReasonOf(err); reason == Expired || reason == Gone {
		m.version = "" // and all is listed anew
		return nil
	}
	return err
}

// List takes in all objects. It blocks until it has them, the API has failed,
// or ctx ends. It is not called beside Run.
func (m *Mirror[T]) List(ctx context.Context) error {
	all := make(map[string]T)
	opts := ListOptions{Labels: m.labels, Fields: m.fields, Limit: pageSize}
	for {
		page, err := m.page(ctx, opts)
		if err != nil {
			m.fail(err)
			return err
		}
		for _, object := range page.Items {
			all[object.id().Name] = kept(object)
		}
		if opts.Continue = page.Metadata.Continue; opts.Continue == "" {
			m.version, m.heard = page.Metadata.ResourceVersion, time.Now()
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held, m.fault = all, nil
	return nil
}

func (m *Mirror[T]) page(ctx context.Context, opts ListOptions) (*List[T], error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	return m.api.List(ctx, opts)
}

// kept drops metadata that nobody reads: kubectl's annotations repeat the whole object.
func kept[T Mirrored](object T) T {
	object.metadata().Annotations = nil
	return object
}

// watch takes in what changes. nil: it ended as watches do.
func (m *Mirror[T]) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchGrace)
	defer cancel()
	return m.api.Watch(ctx, WatchOptions{Labels: m.labels, Fields: m.fields, From: m.version, Time: watchTime}, m.caughtUp, m.take)
}

// caughtUp notes that held is what the API has, or is about to be.
func (m *Mirror[T]) caughtUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = nil
}

// take takes in one event of a watch.
func (m *Mirror[T]) take(what Event, object T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch what {
	case Added, Modified:
		m.held[object.id().Name] = kept(object)
	case Deleted:
		delete(m.held, object.id().Name)
	}
	m.version, m.heard = object.id().ResourceVersion, time.Now() // also of a bookmark, which has nothing else
}
