package tlsreload

import (
	"crypto/x509"
	"errors"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// SystemCA is a CA that the system trusts, where it takes them from a file.
var SystemCA *pki.CA

func TestMain(m *testing.M) {
	var err error
	if SystemCA, err = pki.NewCA("the system's"); err == nil {
		err = trustAsSystem(SystemCA.CertPEM)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testutil.Settled(m))
}

// trustAsSystem has crypto/x509 read the system's CAs, which it does once, from a file.
func trustAsSystem(ca []byte) error {
	f, err := os.CreateTemp("", "ca")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(ca)
	err = errors.Join(err, f.Close(), os.Setenv("SSL_CERT_FILE", f.Name()))
	_, _ = x509.SystemCertPool()
	return errors.Join(err, os.Unsetenv("SSL_CERT_FILE"))
}

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
