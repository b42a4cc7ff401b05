package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// shelf is a MirrorAPI without a network: names of Secrets, each with its
// version as its content.
type shelf struct {
	mu       sync.Mutex
	version  int
	held     map[string]string
	down     error
	expired  bool // the next watch is
	lists    int
	watches  []string // the versions that were watched from
	watchers map[chan told]struct{}
}

func newShelf(names ...string) *shelf {
	s := &shelf{held: make(map[string]string), watchers: make(map[chan told]struct{})}
	for _, name := range names {
		s.put(name)
	}
	return s
}

func (s *shelf) String() string { return "ns" }

func (s *shelf) secret(name string) *Secret {
	return &Secret{
		Meta: Meta{Metadata: Metadata{Identity: Identity{Name: name, UID: "of-" + name, ResourceVersion: s.held[name]}}},
		Data: map[string][]byte{"version": []byte(s.held[name])},
	}
}

// List has pages of two.
func (s *shelf) List(_ context.Context, opts ListOptions) (*List[*Secret], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists++; s.down != nil {
		return nil, s.down
	}
	if opts.Labels != "tenant" || opts.Limit == 0 {
		return nil, fmt.Errorf("listed by %+v", opts)
	}
	var names []string
	for name := range s.held {
		if name > opts.Continue {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := &List[*Secret]{Metadata: ListMetadata{ResourceVersion: fmt.Sprint(s.version)}}
	if len(names) > 2 {
		names = names[:2]
		out.Metadata.Continue = names[1]
	}
	for _, name := range names {
		out.Items = append(out.Items, s.secret(name))
	}
	return out, nil
}

// told is an event of a watch.
type told struct {
	what   Event
	secret *Secret
}

func (s *shelf) Watch(_ context.Context, opts WatchOptions, began func(), take func(Event, *Secret)) error {
	events, err := s.watch(opts)
	if err != nil {
		return err
	}
	began()
	for e := range events {
		take(e.what, e.secret)
	}
	return nil
}

func (s *shelf) watch(opts WatchOptions) (chan told, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down != nil:
		return nil, s.down
	case opts.Labels != "tenant" || opts.Time != watchTime:
		return nil, fmt.Errorf("watched by %+v", opts)
	}
	s.watches = append(s.watches, opts.From)
	if s.expired {
		s.expired = false
		return nil, &Error{Code: 410, Reason: Expired}
	}
	events := make(chan told, 100)
	s.watchers[events] = struct{}{}
	return events, nil
}

func (s *shelf) tell(what Event, secret *Secret) {
	for events := range s.watchers {
		events <- told{what, secret}
	}
}

func (s *shelf) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what := Added
	if s.held[name] != "" {
		what = Modified
	}
	s.version++
	s.held[name] = fmt.Sprint(s.version)
	s.tell(what, s.secret(name))
}

func (s *shelf) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.held[name] = fmt.Sprint(s.version)
	s.tell(Deleted, s.secret(name))
	delete(s.held, name)
}

// bookmark tells watchers a version.
func (s *shelf) bookmark(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := new(Secret)
	told.ResourceVersion = version
	s.tell(Bookmark, told)
}

// end ends all watches.
func (s *shelf) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for events := range s.watchers {
		close(events)
	}
	clear(s.watchers)
}

func (s *shelf) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
}

// mirrored runs a Mirror of s in a bubble, and ends it.
func mirrored(t *testing.T, s *shelf, do func(m *Mirror[*Secret])) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMirror(s, "tenant", "")
		stop := testutil.Start(t, m.Run)
		synctest.Wait()
		do(m)
		s.end()
		stop()
	})
}

// has is what a mirror has: names with versions.
func has(m *Mirror[*Secret]) string {
	names, err := m.Names()
	slices.Sort(names)
	for i, name := range names {
		data, version := SecretMirror{m}.Get(name)
		names[i] += "=" + string(data["version"])
		if version != "of-"+name+"/"+string(data["version"]) {
			return "the version " + version
		}
	}
	if err != nil {
		names = append(names, "("+err.Error()+")")
	}
	return strings.Join(names, " ")
}

func wants(t *testing.T, m *Mirror[*Secret], want string) {
	t.Helper()
	synctest.Wait()
	testutil.Equal(t, has(m), want, "it has")
}

func TestMirrorFollowsChanges(t *testing.T) {
	s := newShelf("a", "b", "c", "d", "e")
	mirrored(t, s, func(m *Mirror[*Secret]) {
		wants(t, m, "a=1 b=2 c=3 d=4 e=5")
		s.put("b")
		s.put("f")
		s.drop("c")
		wants(t, m, "a=1 b=6 d=4 e=5 f=7")
		_, version := (SecretMirror{m}).Get("c")
		testutil.Holds(t, version == "", "one that is gone has the version %s", version)
		testutil.Holds(t, m.String() == "ns" && s.lists == 3, "%s was listed in %d pages", m, s.lists)
	})
}

// What a watch has missed when it ended, the next one is sent: it begins where
// that one ended, or at its last bookmark.
func TestMirrorResumesFromItsVersion(t *testing.T) {
	s := newShelf("a")
	mirrored(t, s, func(m *Mirror[*Secret]) {
		s.put("b")
		synctest.Wait()
		s.end()
		time.Sleep(2 * leastPause)
		synctest.Wait()
		s.bookmark("9")
		wants(t, m, "a=1 b=2")
		s.end()
		time.Sleep(2 * mostPause)
		synctest.Wait()
		if want := []string{"1", "2", "9"}; !slices.Equal(s.watches, want) || s.lists != 1 {
			t.Errorf("watched from %q, want %q; %d lists", s.watches, want, s.lists)
		}
	})
}

// A version that is too old leads to a new list; Secrets that it lacks are dropped.
func TestMirrorRelistsAfterExpiry(t *testing.T) {
	s := newShelf("a", "b")
	mirrored(t, s, func(m *Mirror[*Secret]) {
		s.mu.Lock()
		s.expired = true
		delete(s.held, "a") // unseen
		s.mu.Unlock()
		s.end()
		time.Sleep(2 * mostPause)
		wants(t, m, "b=2")
		testutil.Equal(t, s.lists, 2, "lists")
	})
}

// Behind a restore of etcd versions begin anew, below those that were seen, and a watch
// from one of these is told nothing. One that is told something is not listed again.
func TestMirrorRelistsAfterARestore(t *testing.T) {
	s := newShelf("a", "b")
	mirrored(t, s, func(m *Mirror[*Secret]) {
		for range 3 {
			time.Sleep(watchTime / 2)
			s.bookmark("9")
			time.Sleep(watchTime / 2)
			s.end()
		}
		time.Sleep(2 * mostPause)
		testutil.Equal(t, s.lists, 1, "lists while the API told something")
		s.mu.Lock()
		s.version, s.held = 1, map[string]string{"a": "1", "c": "1"} // unseen
		s.mu.Unlock()
		time.Sleep(watchTime)
		s.end()
		time.Sleep(2 * mostPause)
		wants(t, m, "a=1 c=1")
		s.put("d")
		wants(t, m, "a=1 c=1 d=2")
	})
}

func TestMirrorKeepsSecretsDuringAnOutage(t *testing.T) {
	s := newShelf("a")
	mirrored(t, s, func(m *Mirror[*Secret]) {
		s.fail(errors.New("read 127.0.0.1:1: reset"))
		s.end()
		time.Sleep(time.Minute)
		wants(t, m, "a=1 (read 127.0.0.1:1: reset)")
		s.fail(errors.New("read 127.0.0.1:2: reset")) // the same, as people see it
		time.Sleep(time.Minute)
		wants(t, m, "a=1 (read 127.0.0.1:1: reset)")
		s.fail(&Error{Code: 401, Reason: Unauthorized, Message: "who are you"})
		time.Sleep(time.Minute)
		wants(t, m, "a=1 (who are you)")
		s.fail(nil)
		time.Sleep(2 * mostPause)
		wants(t, m, "a=1")
		s.put("b")
		wants(t, m, "a=1 b=2")
	})
}

func TestMirrorStartsLate(t *testing.T) {
	s := newShelf("a")
	s.fail(errors.New("refused"))
	mirrored(t, s, func(m *Mirror[*Secret]) {
		wants(t, m, "(refused)")
		time.Sleep(time.Hour)
		synctest.Wait()
		if least, most := int(time.Hour/mostPause/2), int(time.Hour/mostPause)+3; s.lists < least || s.lists > most {
			t.Errorf("it was asked %d times in an hour, want %d to %d", s.lists, least, most)
		}
		s.fail(nil)
		time.Sleep(2 * mostPause)
		wants(t, m, "a=1")
	})
}

func TestMirrorBeforeTheFirstList(t *testing.T) {
	m := NewMirror(newShelf("a"), "tenant", "")
	testutil.Fails(t, testutil.Err(m.Names()), "it is known that there are none")
	err := m.List(t.Context())
	testutil.Holds(t, err == nil && has(m) == "a=1", "%v, %s", err, has(m))
}
