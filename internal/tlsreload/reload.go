package tlsreload

import (
	"time"

	"github.com/sirupsen/logrus"
)

// Reload reads the files now. If they changed and are good, they are in use
// when Reload returns. If they are not good, its error names the file, and what
// was in use stays in use. A new fault is logged once, and so is its end.
func (s *Source) Reload() error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	m, err := s.load()
	if err != nil {
		s.fail(err)
		return err
	}
	changed := m != s.inUse()
	if s.use(m); changed && s.changed != nil {
		s.changed()
	}
	return nil
}

// OnChange has f called whenever files that had changed, or were missing, have
// come into use. f is called on the goroutine of Run or Reload, and must neither
// block nor call s. There is one f at a time.
func (s *Source) OnChange(f func()) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.changed = f
}

// load turns the files into material; unchanged files yield the material in
// use.
func (s *Source) load() (*material, error) {
	c, err := read(s.files)
	if err != nil {
		return nil, err
	}
	if old := s.inUse(); old != nil && old.digest == c.digest() {
		return old, nil
	}
	return c.parse(s.opts.SystemRoots)
}

// use puts m into use and logs what changed.
func (s *Source) use(m *material) {
	old := s.state.Swap(&state{material: m})
	log := s.opts.Log.WithField("certificates", s.opts.Name)
	switch {
	case old.material != nil && old.material != m:
		s.changes.Add(1)
		log.Info("certificate files changed; new handshakes use them")
	case old.fault != nil && old.material == nil:
		log.Info("certificate files are in place")
	case old.fault != nil:
		log.Info("certificate files are good again")
	}
	if old.material != m {
		s.warned = make(map[string]bool)
		if m.cert != nil {
			s.warnOfOwn(m.cert.Leaf)
		}
		if n := len(m.leftOut); n > 0 {
			log.WithError(m.leftOut[0]).Warnf("%d files of CA directories cannot be used and are ignored, in whole or in part; the first is named here", n)
		}
	}
	s.warnExpired(log, m, time.Now())
}

// fail records err, and counts and logs it unless it is that of the last attempt.
func (s *Source) fail(err error) {
	old := s.state.Load()
	s.state.Store(&state{old.material, err})
	if old.fault != nil && old.fault.Error() == err.Error() {
		return
	}
	s.faults.Add(1)
	log := s.opts.Log.WithField("certificates", s.opts.Name).WithError(err)
	if old.material == nil {
		log.Warn("certificate files cannot be used; waiting for good ones")
	} else {
		log.Warn("changed certificate files cannot be used; the old ones stay in use")
	}
}

// ExpiredCertificate is logged once of a certificate that has expired: it is used all the same.
const ExpiredCertificate = "certificate has expired; replace it"

// warnExpired logs certificates that peers will refuse, each once: those that had
// expired or were not valid yet when they came into use, and those that expire in use. What is
// good once the clock was set is logged again should it expire.
// They are used nevertheless: it may be our clock that is wrong. So are revocation lists
// that are out of date: if these refused all peers, an outage of their publisher would
// stop the tunnel.
func (s *Source) warnExpired(log logrus.FieldLogger, m *material, now time.Time) {
	once := func(bad bool, file, field string, at time.Time, say string) {
		if bad && !s.warned[file+say] {
			log.WithField("file", file).WithField(field, at.UTC().Format(time.RFC3339)).Warn(say)
		}
		s.warned[file+say] = bad
	}
	for file, cert := range m.first {
		once(now.Before(cert.NotBefore), file, "valid_from", cert.NotBefore, "certificate is not valid yet; replace it, or correct this machine's clock")
		once(now.After(cert.NotAfter), file, "expired", cert.NotAfter, ExpiredCertificate)
	}
	if lists := m.lists; lists != nil && !lists.Until.IsZero() {
		once(now.After(lists.Until), s.files.CRL, "expired", lists.Until, OutdatedLists)
	}
}
