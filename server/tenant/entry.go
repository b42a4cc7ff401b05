package tenant

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"konnectivity/internal/admin"
)

// entry is one tenant.
type entry struct {
	stamp stamp         // of the files that were read; nil: read them again
	read  time.Time     // counts as the moment of that
	phase time.Duration // of rereads, and of looks at the files; random, so that all looks cost about the same
	seen  uint          // the look that has found it listed
	gone  int           // looks since it was there

	parsed  *Spec // the newest reading; nil: none
	err     error // of it
	serving *Spec // nil: broken
	last    *Spec // that was served
	names   []string
	reader  admin.TokenDigest // as its file last had it, whatever is wrong with others; zero: none
	since   time.Time
	said    string // as logged
	old     bool   // serving's revocation lists were logged as out of date
	expired int    // how many of serving's Expiries were logged
	shares  bool   // its reader's token was logged as another's, too
}

// learn takes in a reading, made between two stamps. If they differ, it may be of half
// a change and must not cut connections: a served tenant keeps its spec until a look
// finds the files unchanging.
func (e *entry) learn(tenant *Spec, err error, before, after stamp, now time.Time) (news bool) {
	if err == nil {
		err = tenant.opened(e.last)
	}
	e.stamp, e.read = nil, e.due(now)
	whole := after != nil && before.same(after)
	if !whole && e.serving != nil {
		if after != nil { // it is there
			e.gone = 0
		}
		return false
	}
	if whole && after.holds(0) && !unread(err) {
		e.stamp = after // files that did not change while they were read need not be read again
	}
	e.names = tenant.ServerNames
	if tenant.readerKnown && tenant.Reader != e.reader {
		e.reader, news = tenant.Reader, true
	}
	if err != nil {
		return e.failed(err, now) || news
	}
	news = news || e.err != nil || e.parsed == nil || e.parsed.digest != tenant.digest
	switch e.gone, e.err = 0, nil; {
	case e.serving != nil && e.serving.digest == tenant.digest:
		e.parsed = e.serving
	case news:
		e.parsed = tenant
	}
	return news
}

// due is when a tenant was last to be read again, at now or before. Each is at a
// moment of its own, so that not all are read in one look, even if all of them
// have changed in one.
func (e *entry) due(now time.Time) time.Time {
	return now.Add(-(time.Duration(now.UnixNano()) + e.phase) % rereadEvery)
}

// unread says whether err tells that a file could not be read, rather than that
// it is wrong.
func unread(err error) bool {
	var errno interface{ Temporary() bool } // syscall.Errno
	return err != nil && (errors.As(err, &errno) || errors.Is(err, fs.ErrNotExist))
}

// failed notes why the tenant cannot be used. One that is served goes on as it
// was, unless it is withdrawn, and is so the next time too.
func (e *entry) failed(err error, now time.Time) (news bool) {
	news = e.err == nil || e.err.Error() != err.Error()
	e.err, e.parsed = err, nil
	if !withdrawn(err) {
		e.gone = 0
		return news
	}
	if e.gone++; e.gone > 1 && e.serving != nil {
		e.serving, e.since = nil, now
		return true
	}
	return news
}

// withdrawn reports whether err says that a file is missing without which there is no
// tenant: removing a CA removes the tenant. A file that tenant.yaml names may only be
// late.
func withdrawn(err error) bool {
	var field *FieldError
	return errors.Is(err, fs.ErrNotExist) && (!errors.As(err, &field) || slices.Contains([]string{SettingsFile, ClientsCAFile, AgentsCAFile}, field.File))
}

func (e *entry) state() string {
	switch {
	case e.serving == nil:
		return StateBroken
	case e.err != nil:
		return StateStale
	default:
		return StateServing
	}
}
