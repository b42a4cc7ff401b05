// Package tlsreload serves certificates, keys and CAs from files that may
// change while the process runs: handshakes after a change use the new files,
// connections that exist are left alone, and a broken new file leaves the old
// one in use.
//
// Files are read and compared by content at every poll. That follows plain
// writes, renames and the symlink swaps of Kubernetes mounts alike, and a few
// kilobytes every few seconds cost nothing.
//
// A Source owns what it has read, and the goroutine that runs Run is its
// caller's. Every program makes one for each pair of certificate and CA.
package tlsreload

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/internal/wait"
)

// defaultInterval is how often files are read again. It is well under the
// minute in which a rotation must take effect.
const defaultInterval = 10 * time.Second

// Files names what a Source reads. Cert and Key are given together or not at
// all; each may be left empty.
type Files struct {
	Cert string // PEM certificate, followed by its intermediates
	Key  string // PEM private key of Cert
	CA   string // PEM CA certificates that a peer's certificate must chain to

	// CRL has revocation lists, PEM or DER, each signed by a CA of the files: peers whose
	// certificates they name are refused. One that is out of date is used all the same.
	CRL string

	// MoreCAs are further CA bundles: files, or directories of which every
	// *.crt and *.pem is read. What does not exist is skipped, and joins when
	// it appears. What a directory has that is of no use is left out, with one
	// line of log; a file named here that is of no use is an error.
	MoreCAs []string
}

// FilesIn are those of a certificate, by its name, that konnectivity certs wrote into a folder.
func FilesIn(dir, name string) Files {
	in := func(file string) string { return filepath.Join(dir, file) }
	return Files{CA: in("ca.crt"), Cert: in(name + ".crt"), Key: in(name + ".key")}
}

// Options tune a Source. Only Name must be given.
type Options struct {
	// Name distinguishes the Sources of one process in logs and metrics:
	// "server", "cluster", "agent". Unique in a process
	// whose metrics have them.
	Name string
	// Lenient makes New succeed even if files are missing or broken. Until they
	// are there, every handshake fails with a *NotReadyError.
	Lenient bool
	// SystemRoots adds the system's CAs to those of the files. A client without
	// CA files uses the system's anyway.
	SystemRoots bool
	// MinVersion is the lowest TLS version allowed; 0 is TLS 1.2.
	MinVersion uint16
	// CipherSuites restricts TLS 1.2 suites; nil is Go's choice.
	CipherSuites []uint16
	// Peer, if set, judges a peer by its verified certificate; an error ends
	// the handshake. Refusals are counted, and logged once a minute.
	Peer func(*x509.Certificate) error
	// Bare lets peers without a certificate in, though the files have CAs: the caller has
	// them prove who they are in another way. Guests are held to theirs.
	Bare bool
	// Own, if set, says why peers may refuse the certificate of the files; that
	// is logged when it comes into use.
	Own func(*x509.Certificate) error
	// Interval is how often Run reads the files; 0 is defaultInterval.
	Interval time.Duration
	// Log gets one line per change and one per new fault; nil is silence.
	Log logrus.FieldLogger
}

// NotReadyError says that a Source has nothing usable yet. Only Lenient Sources
// return it.
type NotReadyError struct {
	Name string // the Source's
	Err  error  // names the file and its fault
}

// Error is a sentence that names the file.
func (e *NotReadyError) Error() string {
	return fmt.Sprintf("certificates of %s are not in place: %v", e.Name, e.Err)
}

// Unwrap is Err; errors.Is(err, fs.ErrNotExist) tells a missing file.
func (e *NotReadyError) Unwrap() error { return e.Err }

// Source holds the files' last usable contents. All methods are safe for
// concurrent use and none but Run and Reload does I/O.
type Source struct {
	files Files
	opts  Options

	state                    atomic.Pointer[state]     // written under reloading
	changes, faults, refused atomic.Int64              // see Stats
	refusalLogged            atomic.Pointer[time.Time] // when a refused peer was last logged; nil: never

	reloading sync.Mutex      // held by Reload; guards the fields below
	changed   func()          // see OnChange; may be nil
	warned    map[string]bool // what warnExpired has logged of the files in use
}

// state is the outcome of the attempts to read the files.
type state struct {
	material *material // in use: that of the last success; nil before the first one
	fault    error     // of the last attempt; nil if it succeeded
}

// New reads files. Unless Options.Lenient is set, it fails with a sentence that
// names the file if any is missing or broken, or if they do not belong
// together.
func New(files Files, opts Options) (*Source, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, fmt.Errorf("%s: a certificate needs its key and the reverse, got certificate %q and key %q",
			opts.Name, files.Cert, files.Key)
	}
	s := &Source{files: files, opts: opts.withDefaults()}
	s.state.Store(&state{})
	if m, err := s.load(); err == nil {
		s.use(m)
	} else if opts.Lenient {
		s.fail(err)
	} else {
		return nil, fmt.Errorf("%s: %w", opts.Name, err)
	}
	return s, nil
}

// withDefaults fills in what may be left out.
func (o Options) withDefaults() Options {
	o.MinVersion = cmp.Or(o.MinVersion, tls.VersionTLS12)
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	o.Log = cmp.Or[logrus.FieldLogger](o.Log, logging.Silent())
	return o
}

// Run reads the files every Options.Interval until ctx ends, which is when it
// returns. Faults are logged and counted, never returned.
func (s *Source) Run(ctx context.Context) {
	wait.Every(ctx, s.opts.Interval, func() { _ = s.Reload() }) // logged and counted there
}

// Ready returns nil once the Source has something usable, and a *NotReadyError
// before. A dialer calls it first, to fail without using the network.
func (s *Source) Ready() error {
	_, err := s.material()
	return err
}

// Certificate is the present certificate, or nil if there is none. It must not
// be modified.
func (s *Source) Certificate() *tls.Certificate {
	if m := s.inUse(); m != nil {
		return m.cert
	}
	return nil
}

// inUse returns the material in use, or nil if there is none yet.
func (s *Source) inUse() *material { return s.state.Load().material }

// material returns what to use for a handshake now.
func (s *Source) material() (*material, error) {
	now := s.state.Load()
	if now.material == nil {
		return nil, &NotReadyError{Name: s.opts.Name, Err: now.fault}
	}
	return now.material, nil
}
