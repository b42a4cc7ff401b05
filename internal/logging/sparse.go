package logging

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
)

const (
	// sparseLines is the number of warnings and errors with the same message that
	// are logged in a sparseWindow. Any host on the network can cause some of them
	// thousands of times a second; a few are enough.
	sparseLines  = 20
	sparseWindow = time.Minute

	// sparseWordings bounds the number of messages that are counted, tenantWordings
	// that of each tenant. All but some of libraries are constants; those beyond the
	// bound count as one message.
	sparseWordings = 256
	tenantWordings = 32

	// keptTime is the time for which the number of a message's dropped lines is kept.
	keptTime = time.Hour

	// keptBack is the field with the number of equal lines dropped before this one.
	// dropped marks an entry to drop.
	keptBack = "kept_back"
	dropped  = "\x00dropped"

	// tenantField is the field with the tenant whose peers caused a line.
	tenantField = "tenant"
)

// sparse is a hook that bounds the lines of each message, so that no peer can fill the log,
// for each tenant separately, so that none can hide the lines of another. It marks entries
// to drop, which sparseFormatter renders as nothing.
type sparse struct {
	mu     sync.Mutex
	seen   map[string]map[string]*wording // by tenant
	pruned time.Time                      // when unused records were removed last
	untold int                            // dropped lines of records that were removed
}

// End writes how many lines were dropped that no later line tells of, as a warning, or as an
// error if log has no warnings. Programs call it as they end.
func End(log *logrus.Entry) {
	for _, hook := range log.Logger.Hooks[logrus.WarnLevel] {
		if s, ok := hook.(*sparse); ok {
			if kept := s.takeAll(); kept > 0 {
				log.WithField(keptBack, kept).Log(min(logrus.WarnLevel, log.Logger.GetLevel()), "lines like others before were not logged, and no later line has told so")
			}
		}
	}
}

// takeAll returns the number of dropped lines, and forgets all records: the next line is written.
func (s *sparse) takeAll() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.untold
	for _, seen := range s.seen {
		for _, w := range seen {
			all += w.kept
		}
	}
	s.untold = 0
	clear(s.seen)
	return all
}

// wording counts the lines of a message since a time.
type wording struct {
	since        time.Time
	logged, kept int
}

// stale reports whether the record can be removed.
func (w *wording) stale(now time.Time) bool {
	return now.Sub(w.since) >= keptTime || w.kept == 0 && now.Sub(w.since) >= sparseWindow
}

// Levels implements logrus.Hook. Details are not bounded.
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

// of returns the record of a tenant's message, and creates it if necessary.
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
		s.forget(seen, now)
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

// wordings returns the records of a tenant, and removes stale ones of all tenants.
func (s *sparse) wordings(tenant string, now time.Time) map[string]*wording {
	if now.Sub(s.pruned) >= sparseWindow {
		s.pruned = now
		maps.DeleteFunc(s.seen, func(_ string, seen map[string]*wording) bool {
			maps.DeleteFunc(seen, func(_ string, w *wording) bool { return s.drop(w, w.stale(now)) })
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

// forget removes records of past windows.
func (s *sparse) forget(seen map[string]*wording, now time.Time) {
	maps.DeleteFunc(seen, func(_ string, w *wording) bool { return s.drop(w, now.Sub(w.since) >= sparseWindow) })
}

// drop notes what a record has kept that is removed, if it is.
func (s *sparse) drop(w *wording, removed bool) bool {
	if removed {
		s.untold += w.kept
	}
	return removed
}

// sparseFormatter omits dropped entries, and escapes characters that control a terminal.
type sparseFormatter struct{ logrus.Formatter }

// Format implements logrus.Formatter.
func (f sparseFormatter) Format(entry *logrus.Entry) ([]byte, error) {
	if entry.Data[dropped] != nil {
		return nil, nil
	}
	line, err := f.Formatter.Format(entry)
	if _, text := f.Formatter.(*logrus.TextFormatter); text || err != nil {
		return line, err // the text format quotes such characters
	}
	return EscapeHidden(line), nil
}

// EscapeHidden returns a JSON text with invisible characters escaped, which could
// control the terminal that shows it. Its meaning stays the same.
func EscapeHidden(text []byte) []byte {
	if !bytes.ContainsFunc(text, Hidden) {
		return text
	}
	out := make([]byte, 0, len(text)+64)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if Hidden(r) {
			out = AppendEscape(out, r)
		} else {
			out = append(out, text[:n]...)
		}
		text = text[n:]
	}
	return out
}

// AppendEscape appends r as strings of JSON can escape any character.
func AppendEscape(b []byte, r rune) []byte {
	if r > 0xffff {
		high, low := utf16.EncodeRune(r)
		return fmt.Appendf(b, `\u%04x\u%04x`, high, low)
	}
	return fmt.Appendf(b, `\u%04x`, r)
}

// Hidden reports whether r is an invisible character that encoding/json does not
// escape. It escapes those below the space, except for line ends between values.
func Hidden(r rune) bool { return r > '~' && !unicode.IsPrint(r) }
