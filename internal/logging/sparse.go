package logging

import (
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// sparseLines is how many warnings and errors of one wording are logged in
	// a sparseWindow. Anybody on the network can cause some of them by the
	// thousand a second; this many are enough to see what is wrong.
	sparseLines  = 20
	sparseWindow = time.Minute

	// sparseWordings bounds how many wordings are remembered, and tenantWordings
	// how many of each tenant. All but some of libraries are constants; those
	// beyond the bound count as one.
	sparseWordings = 256
	tenantWordings = 32

	// keptTime is how long is remembered how many lines were kept back.
	keptTime = time.Hour

	// keptBack is the field that says how many lines like it were not logged
	// before this one, and dropped marks one that is not.
	keptBack = "kept_back"
	dropped  = "\x00dropped"

	// tenantField says whose peers caused a line, on a server of many clusters.
	tenantField = "tenant"
)

// sparse is a hook that bounds the lines of each wording, so that no peer can
// fill a log; those of each tenant apart, so that none can hide what another's
// cause. It marks entries to drop, which sparseFormatter renders as nothing.
type sparse struct {
	mu     sync.Mutex
	seen   map[string]map[string]*wording // by tenant
	looked time.Time                      // for tenants that may be forgotten
}

// wording counts the lines of a message since a point in time.
type wording struct {
	since        time.Time
	logged, kept int
}

// stale says that the record does not matter any more.
func (w *wording) stale(now time.Time) bool {
	return now.Sub(w.since) >= keptTime || w.kept == 0 && now.Sub(w.since) >= sparseWindow
}

// Levels implements logrus.Hook: a user who asks for details gets all of them.
func (*sparse) Levels() []logrus.Level { return logrus.AllLevels[:logrus.WarnLevel+1] }

// Fire implements logrus.Hook. The entry is the logger's own copy.
func (s *sparse) Fire(entry *logrus.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	tenant, _ := entry.Data[tenantField].(string)
	w := s.of(tenant, entry.Message, now)
	if now.Sub(w.since) >= sparseWindow {
		w.since, w.logged = now, 0
	}
	if w.logged == sparseLines {
		w.kept++
		entry.Data[dropped] = true
		return nil
	}
	w.logged++
	if w.kept > 0 {
		entry.Data[keptBack] = w.kept
		w.kept = 0
	}
	return nil
}

// of returns the record of a tenant's message, which it creates if need be.
func (s *sparse) of(tenant, message string, now time.Time) *wording {
	seen := s.wordings(tenant, now)
	if w := seen[message]; w != nil {
		return w
	}
	most := sparseWordings
	if tenant != "" {
		most = tenantWordings
	}
	if len(seen) >= most {
		forget(seen, now)
	}
	if len(seen) >= most {
		message = "" // exceeds the bound by this one at most
		if w := seen[message]; w != nil {
			return w
		}
	}
	w := &wording{since: now}
	seen[message] = w
	return w
}

// wordings returns the records of a tenant, and forgets those of tenants that
// have been quiet.
func (s *sparse) wordings(tenant string, now time.Time) map[string]*wording {
	if now.Sub(s.looked) >= sparseWindow {
		s.looked = now
		maps.DeleteFunc(s.seen, func(_ string, seen map[string]*wording) bool {
			maps.DeleteFunc(seen, func(_ string, w *wording) bool { return w.stale(now) })
			return len(seen) == 0
		})
	}
	seen := s.seen[tenant]
	if seen == nil {
		seen = make(map[string]*wording)
		s.seen[tenant] = seen
	}
	return seen
}

// forget drops records whose last line is too long ago to matter.
func forget(seen map[string]*wording, now time.Time) {
	maps.DeleteFunc(seen, func(_ string, w *wording) bool { return now.Sub(w.since) >= sparseWindow })
}

// sparseFormatter omits entries that are to be dropped, and characters that
// would control a terminal.
type sparseFormatter struct{ logrus.Formatter }

// Format implements logrus.Formatter.
func (f sparseFormatter) Format(entry *logrus.Entry) ([]byte, error) {
	if entry.Data[dropped] != nil {
		return nil, nil
	}
	line, err := f.Formatter.Format(entry)
	if _, text := f.Formatter.(*logrus.TextFormatter); text || err != nil {
		return line, err // it quotes what is not plain
	}
	return escapeHidden(line), nil
}
