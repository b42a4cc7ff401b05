package tlsreload

import (
	"crypto/x509"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// RefusalLogged is when a refused peer was last logged, with the clock that it is measured by.
func (s *Source) RefusalLogged() string { return s.refusalLogged.Load().String() }

// Pool returns the CAs in use, for tests of other packages' handshakes: those of the
// files, with the system's if so configured. nil means the system's.
func (s *Source) Pool() *x509.CertPool {
	if m := s.inUse(); m != nil {
		return m.pool
	}
	return nil
}

// WarnAsOf is what Run does now and then, by a clock that says now.
func (s *Source) WarnAsOf(now time.Time) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.warnExpired(s.opts.Log, s.inUse(), now)
}
