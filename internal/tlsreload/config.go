package tlsreload

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
)

// clientSessions is how many sessions are remembered: one for each server name or address,
// of which a program has few.
const clientSessions = 64

// Server returns a Config for a listener. It presents the certificate of the
// files and, if a CA is configured, requires every client to have a certificate
// that chains to it and that Options.Peer accepts (with Options.Bare, or none). nextProtos are offered by
// ALPN, in order of preference; without any, every client is accepted.
//
// The Config follows reloads. Session tickets outlive them, except that a
// ticket of a client whose CA is no longer trusted leads to a full handshake,
// and so to a refusal.
func (s *Source) Server(nextProtos ...string) *tls.Config {
	return s.ServerFor(nil, nextProtos...)
}

// ServerFor is Server for a listener that serves guests as well, with CAs and
// certificates of their own: choose says whose a handshake is.
func (s *Source) ServerFor(choose Choose, nextProtos ...string) *tls.Config {
	base := s.base(nextProtos)
	listener := base.Clone()
	// Session tickets are made with the keys of this Config, not of the one
	// that GetConfigForClient returns, so they survive a reload.
	listener.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		m, err := s.material()
		if err != nil {
			return nil, err
		}
		if choose != nil {
			switch guest, err := choose(hello); {
			case err != nil:
				return refusal(base), nil
			case guest != nil:
				return guest.configFor(s, listener, base, m), nil
			}
		}
		c := s.serverConfig(base, m.cert, m.pool, m.lists)
		if s.opts.Bare && m.pool != nil {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
		if choose != nil {
			isolateSessions(c, listener, "")
		}
		return c, nil
	}
	return listener
}

// serverConfig is for one handshake: it shows cert and asks for a certificate
// of one of the CAs, if there are any, that is not revoked.
func (s *Source) serverConfig(base *tls.Config, cert *tls.Certificate, cas *x509.CertPool, lists *Lists) *tls.Config {
	c := base.Clone()
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	if cas != nil {
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs = cas
		c.VerifyConnection = func(state tls.ConnectionState) error { return s.judge(state, lists) }
	}
	return c
}

// Client returns a Config for dialing the server serverName, a DNS name or an
// IP address that its certificate must have. It trusts the CA files (or the
// system's CAs if there are none), presents the certificate of the files if
// there is one and the server asks, and resumes sessions.
//
// The Config follows reloads; sessions from before a reload are not resumed, so
// the next handshake presents and checks the new certificates.
//
// With an empty serverName the dialing library fills it in, as net/http and
// grpc do; that works for DNS names only, an IP address is refused.
func (s *Source) Client(serverName string, nextProtos ...string) *tls.Config {
	serverName = strings.TrimSuffix(strings.Trim(serverName, "[]"), ".")
	c := s.base(nextProtos)
	c.ServerName = serverName
	c.ClientSessionCache = sessions{s}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		m, err := s.material()
		if err != nil {
			return nil, err
		}
		if m.cert == nil {
			return new(tls.Certificate), nil // none to show; the server decides
		}
		return m.cert, nil
	}
	// The check against a fixed RootCAs is replaced, not dropped:
	// VerifyConnection does the same with the present CAs, and runs for resumed
	// sessions too.
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(state tls.ConnectionState) error {
		m, err := s.material()
		if err != nil {
			return err
		}
		if err := verifyServer(state, serverName, m.pool); err != nil {
			return err
		}
		return s.judge(state, m.lists)
	}
	return c
}

// verifyServer checks the server's chain and name as crypto/tls itself would.
// name takes precedence over the handshake's, which is empty for IP addresses.
func verifyServer(state tls.ConnectionState, name string, roots *x509.CertPool) error {
	if name = cmp.Or(name, state.ServerName); name == "" {
		return errors.New("no server name to check the server's certificate against")
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server showed no certificate")
	}
	if ip, err := netip.ParseAddr(name); err == nil {
		name = ip.WithZone("").Unmap().String() // one spelling for all; no certificate has a zone
	}
	if err := verifyChain(state.PeerCertificates, x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}

// base is what all Configs share.
func (s *Source) base(nextProtos []string) *tls.Config {
	return &tls.Config{
		NextProtos:   nextProtos,
		MinVersion:   s.opts.MinVersion,
		CipherSuites: s.opts.CipherSuites,
		// Small first records help browsers paint a page early; here they would
		// only cost CPU for each burst of a long-lived connection.
		DynamicRecordSizingDisabled: true,
	}
}

// sessions is the session cache of the material in use, so that the sessions of other
// certificates are not resumed.
type sessions struct{ *Source }

// Get implements tls.ClientSessionCache.
func (c sessions) Get(key string) (*tls.ClientSessionState, bool) {
	if m := c.inUse(); m != nil {
		return m.sessions.Get(key)
	}
	return nil, false
}

// Put implements tls.ClientSessionCache.
func (c sessions) Put(key string, state *tls.ClientSessionState) {
	if m := c.inUse(); m != nil {
		m.sessions.Put(key, state)
	}
}
