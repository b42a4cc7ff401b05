package tlsreload

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"
)

// refusalPause is the time after a refusal in which no other is logged: refused
// peers retry every few seconds.
const refusalPause = time.Minute

// PeerError says that Options.Peer refused an otherwise valid certificate.
type PeerError struct{ Err error }

// Error returns what Options.Peer said.
func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap is Err.
func (e *PeerError) Unwrap() error { return e.Err }

// refusals counts the peers that Options.Peer refused.
type refusals struct {
	mu     sync.Mutex
	count  uint64
	logged time.Time
}

// add counts one, and says whether it is to be logged.
func (r *refusals) add(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if !r.logged.IsZero() && now.Sub(r.logged) < refusalPause {
		return false
	}
	r.logged = now
	return true
}

func (r *refusals) total() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// judge applies Options.Peer to a peer whose certificate was verified, and bounds
// what its certificates take. It runs for resumed sessions too, which have the
// certificates of the first.
func (s *Source) judge(state tls.ConnectionState) error {
	if err := CheckWeight(state.PeerCertificates); err != nil {
		return err
	}
	if s.opts.Peer == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	err := s.opts.Peer(state.PeerCertificates[0])
	if err == nil {
		return nil
	}
	if s.refused.add(time.Now()) {
		s.opts.Log.WithField("certificates", s.opts.Name).WithError(err).Warn("a peer was refused; further refusals within a minute are only counted")
	}
	return &PeerError{err}
}

// warnOfOwn says why peers will refuse the certificate in use. It is used
// nevertheless: not all peers check.
func (s *Source) warnOfOwn(cert *x509.Certificate) {
	if s.opts.Own == nil {
		return
	}
	if err := s.opts.Own(cert); err != nil {
		s.opts.Log.WithField("certificates", s.opts.Name).WithError(err).
			Warn("peers that check roles refuse this program's own certificate")
	}
}

// The alerts that are told apart (RFC 8446 §6.2).
const (
	badCertificate   tls.AlertError = 42  // crypto/tls's for a certificate that was refused for what it says
	unrecognizedName tls.AlertError = 112 // nobody has the name that was asked for
)

// RefusedByPeer reports whether a handshake, or what followed it, ended because
// the peer refused our certificate for what it says, most likely its role.
func RefusedByPeer(err error) bool { return alerted(err, badCertificate) }

// NameUnknown reports whether a handshake ended because the server knows nobody
// of the name that it was asked for.
func NameUnknown(err error) bool { return alerted(err, unrecognizedName) }

// alerted reports whether the peer ended a connection by this alert.
func alerted(err error, by tls.AlertError) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error" && alert.Err != nil && alert.Err.Error() == by.Error()
}
