package logging

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/printable"
)

const (
	// sparseLines is how many warnings and errors of one wording are logged in
	// a sparseWindow. Anybody on the network can cause some of them by the
	// thousand a second; this many are enough to see what is wrong.
	sparseLines  = 20
	sparseWindow = time.Minute

	// sparseWordings bounds how many wordings are remembered. All but some of
	// libraries are constants; those beyond the bound count as one.
	sparseWordings = 256

	// keptBack is the field that says how many lines like it were not logged
	// before this one, and dropped marks one that is not.
	keptBack = "kept_back"
	dropped  = "\x00dropped"
)

// sparse is a hook that bounds the lines of each wording, so that no peer can
// fill a log. It marks entries to drop, which sparseFormatter renders as
// nothing.
type sparse struct {
	mu   sync.Mutex
	seen map[string]*wording
}

// wording counts the lines of a message since a point in time.
type wording struct {
	since        time.Time
	logged, kept int
}

// Levels implements logrus.Hook: a user who asks for details gets all of them.
func (*sparse) Levels() []logrus.Level { return logrus.AllLevels[:logrus.WarnLevel+1] }

// Fire implements logrus.Hook. The entry is the logger's own copy.
func (s *sparse) Fire(entry *logrus.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	w := s.of(entry.Message, now)
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

// of returns the record of a message, which it creates if need be.
func (s *sparse) of(message string, now time.Time) *wording {
	if w := s.seen[message]; w != nil {
		return w
	}
	if len(s.seen) >= sparseWordings {
		s.forget(now)
	}
	if len(s.seen) >= sparseWordings {
		message = "" // exceeds the bound by this one at most
		if w := s.seen[message]; w != nil {
			return w
		}
	}
	w := &wording{since: now}
	s.seen[message] = w
	return w
}

// forget drops records whose last line is too long ago to matter.
func (s *sparse) forget(now time.Time) {
	for message, w := range s.seen {
		if now.Sub(w.since) >= sparseWindow {
			delete(s.seen, message)
		}
	}
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
	return printable.JSON(line), nil
}
