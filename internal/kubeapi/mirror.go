package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	pageSize = 100              // Secrets that are listed at once
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

// SecretsAPI is what a Mirror needs of the API; Secrets is one.
type SecretsAPI interface {
	List(ctx context.Context, opts metav1.ListOptions) (*SecretList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	String() string // where the Secrets are
}

// Mirror has the Secrets that a label selector selects as the API last had them,
// by a watch. Make it with NewMirror and keep Run running. Its methods may be
// called from any goroutine.
type Mirror struct {
	api      SecretsAPI
	selector string

	// Of List's and Run's goroutine:
	version string    // to watch from; "": list first
	heard   time.Time // when the API last sent anything, a bookmark included

	mu    sync.Mutex
	held  map[string]held
	fault error // why held may not be what the API has; nil: it is
}

// held is the part of a Secret that is kept.
type held struct {
	data    map[string][]byte
	version string
}

// NewMirror returns one that has nothing yet.
func NewMirror(api SecretsAPI, selector string) *Mirror {
	return &Mirror{api: api, selector: selector, fault: errUnlisted}
}

// String says where the Secrets are.
func (m *Mirror) String() string { return m.api.String() }

// Names are the names of all, in a new slice. An error says why they may not be
// what the API has by now: it is away, or refuses to tell.
func (m *Mirror) Names() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.held)), m.fault
}

// Get is what a Secret has, which must not be modified, and a version that
// changes with it; "": there is no such Secret.
func (m *Mirror) Get(name string) (data map[string][]byte, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[name]
	return h.data, h.version
}

// Run follows the Secrets until ctx ends. While the API is away it tries again.
func (m *Mirror) Run(ctx context.Context) {
	for pause := leastPause; ctx.Err() == nil; {
		began := time.Now()
		if err := m.follow(ctx); err != nil && ctx.Err() == nil {
			m.fail(err)
		}
		if time.Since(began) > mostPause {
			pause = leastPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause + rand.N(pause/2)):
		}
		pause = min(2*pause, mostPause)
	}
}

// fail notes why held may not be what the API has. Of several errors of one kind
// the first is kept: those of connections differ in their ports.
func (m *Mirror) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == nil || m.fault == errUnlisted || apierrors.ReasonForError(m.fault) != apierrors.ReasonForError(err) {
		m.fault = err
	}
}

// follow watches until the API ends that, from where it was left. One that has been
// silent for a whole watch may be of versions that begin anew below ours, as behind a
// restore of its etcd, and would stay silent until they get there.
func (m *Mirror) follow(ctx context.Context) error {
	if m.version == "" || time.Since(m.heard) >= watchTime {
		if err := m.List(ctx); err != nil {
			return err
		}
	}
	err := m.watch(ctx)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		m.version = "" // and all is listed anew
		return nil
	}
	return err
}

// List takes in all Secrets. It blocks until it has them, the API has failed,
// or ctx ends. It is not called beside Run.
func (m *Mirror) List(ctx context.Context) error {
	all := make(map[string]held)
	opts := metav1.ListOptions{LabelSelector: m.selector, Limit: pageSize}
	for {
		page, err := m.page(ctx, opts)
		if err != nil {
			m.fail(err)
			return err
		}
		for i := range page.Items {
			all[page.Items[i].Name] = keep(&page.Items[i])
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			m.version, m.heard = page.ResourceVersion, time.Now()
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held, m.fault = all, nil
	return nil
}

func (m *Mirror) page(ctx context.Context, opts metav1.ListOptions) (*SecretList, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	return m.api.List(ctx, opts)
}

// keep returns the part of a Secret that is kept. The version also tells a Secret from
// an earlier one of the same name.
func keep(s *Secret) held {
	return held{data: s.Data, version: string(s.UID) + "/" + s.ResourceVersion}
}

// watch takes in what changes. nil: it ended as watches do.
func (m *Mirror) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime+watchGrace)
	defer cancel()
	seconds := int64(watchTime / time.Second)
	w, err := m.api.Watch(ctx, metav1.ListOptions{
		LabelSelector: m.selector, ResourceVersion: m.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	m.caughtUp()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		s, ok := event.Object.(*Secret)
		if !ok {
			return fmt.Errorf("the API sent a %T where a Secret was asked for", event.Object)
		}
		m.take(event.Type, s)
	}
	return nil
}

// caughtUp notes that held is what the API has, or is about to be.
func (m *Mirror) caughtUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = nil
}

// take takes in one event of a watch.
func (m *Mirror) take(what watch.EventType, s *Secret) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch what {
	case watch.Added, watch.Modified:
		m.held[s.Name] = keep(s)
	case watch.Deleted:
		delete(m.held, s.Name)
	}
	m.version, m.heard = s.ResourceVersion, time.Now() // also of a bookmark, which has nothing else
}
