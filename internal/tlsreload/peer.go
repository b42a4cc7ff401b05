package tlsreload

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"reflect"
	"time"
)

// refusalPause is the time after a refusal in which no other is logged: refused
// peers retry every few seconds.
const refusalPause = time.Minute

// PeerError says that Options.Peer or a revocation list refused an otherwise valid
// certificate.
type PeerError struct{ Err error }

// Error returns the text of Err.
func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap is Err.
func (e *PeerError) Unwrap() error { return e.Err }

// judge applies revocation lists and Options.Peer to a peer whose certificate was verified,
// and bounds what its certificates take. It runs for resumed sessions too, which have the
// certificates of the first.
func (s *Source) judge(state tls.ConnectionState, lists *Lists) error {
	chain := state.PeerCertificates
	if err := CheckWeight(chain); err != nil {
		return err
	}
	if len(chain) == 0 {
		return nil
	}
	err := lists.Check(chain)
	if err == nil && s.opts.Peer != nil {
		err = s.opts.Peer(chain[0])
	}
	if err == nil {
		return nil
	}
	return s.refuse(err)
}

// refuse counts a refused peer, and logs it now and then.
func (s *Source) refuse(err error) error {
	s.refused.Add(1)
	now, last := time.Now(), s.refusalLogged.Load()
	if (last == nil || now.Sub(*last) >= refusalPause) && s.refusalLogged.CompareAndSwap(last, &now) {
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
	expired          tls.AlertError = 45  // crypto/tls's also for a certificate that is not valid yet
	unrecognizedName tls.AlertError = 112 // the server name is unknown
)

// RefusedByPeer reports whether a handshake, or what followed it, ended because
// the peer refused our certificate for what it says, most likely its role.
func RefusedByPeer(err error) bool { return alerted(err, badCertificate) }

// OutOfTimeForPeer reports whether a handshake, or what followed it, ended because our certificate
// has expired, or is not valid yet, by the peer's clock.
func OutOfTimeForPeer(err error) bool { return alerted(err, expired) }

// NameUnknown reports whether a handshake ended because the server does not know the
// server name.
func NameUnknown(err error) bool { return alerted(err, unrecognizedName) }

func alerted(err error, by tls.AlertError) bool {
	alert, ok := AlertOf(err)
	return ok && alert == by
}

// AlertOf returns the TLS alert with which the peer ended a connection, and whether it sent one.
// crypto/tls does not export the type of its alerts, a uint8.
func AlertOf(err error) (alert tls.AlertError, ok bool) {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" { // crypto/tls's name for an alert
		return 0, false
	}
	number := reflect.ValueOf(op.Err)
	if number.Kind() != reflect.Uint8 {
		return 0, false
	}
	return tls.AlertError(number.Uint()), true
}

// Issued says whether a client's certificate, followed by its intermediates, chained
// to one of the CAs at that time, as crypto/tls itself would. An empty chain did not, nor does any
// without CAs, where crypto/x509 would take the system's.
func Issued(chain []*x509.Certificate, cas *x509.CertPool, at time.Time) bool {
	if len(chain) == 0 || cas == nil {
		return false
	}
	return verifyChain(chain, x509.VerifyOptions{Roots: cas, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: at}) == nil
}

// StillIssued is Issued for a certificate that was verified before. One that has expired
// since is judged as of its last moment, and one that is not valid yet, as after the clock was
// set back, as of its first: only its issuer matters.
func StillIssued(chain []*x509.Certificate, cas *x509.CertPool) bool {
	at := time.Now()
	for _, cert := range chain {
		if cert.NotBefore.After(at) {
			at = cert.NotBefore
		}
		if cert.NotAfter.Before(at) {
			at = cert.NotAfter
		}
	}
	return Issued(chain, cas, at)
}

// verifyChain verifies the first certificate of a chain by way of the others.
func verifyChain(chain []*x509.Certificate, opts x509.VerifyOptions) error {
	opts.Intermediates = x509.NewCertPool()
	for _, cert := range chain[1:] {
		opts.Intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(opts)
	return err
}

// Trusts says whether a client's certificate, followed by its intermediates, chains
// to the CAs that the files have now, and is not revoked. Without CA files, none does.
func (s *Source) Trusts(chain []*x509.Certificate) bool {
	m := s.inUse()
	return m != nil && Issued(chain, m.pool, time.Now()) && m.lists.Check(chain) == nil
}

// Recheck judges a client's certificate, followed by its intermediates, that was verified
// before: ErrRevoked, or another error if none of the CAs that the files have now has issued
// it. It may have expired since, as StillIssued has it.
func (s *Source) Recheck(chain []*x509.Certificate) error {
	m := s.inUse()
	switch {
	case m == nil || !StillIssued(chain, m.pool):
		return errNotIssued
	default:
		return m.lists.Check(chain)
	}
}

var errNotIssued = errors.New("its certificate was issued by none of the CAs that are trusted now")
