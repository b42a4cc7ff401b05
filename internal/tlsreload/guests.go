package tlsreload

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"time"
)

// Choose returns the Guest that a handshake is for; nil: the Source itself. An error
// refuses the handshake: the peer learns that its server name is unknown, and sees
// no certificate. It must not block.
type Choose func(*tls.ClientHelloInfo) (*Guest, error)

// Guest is one more party for which a listener performs handshakes, with a
// certificate and CAs of its own. It must not be changed once it is in use.
type Guest struct {
	// Key is different for each guest, and changes when a guest's trust does: a
	// session is resumed only under the key it began with. It must not be empty.
	Key string

	Cert *tls.Certificate // shown to peers; nil: the Source's

	// CAs returns those that peers' certificates must chain to; nil: they need none. It is
	// called for each handshake, and must not block.
	CAs func() *x509.CertPool

	Lists *Lists // refuse peers whose certificates they name, as those of the Source do its own; nil: none

	// Judge, if set, refuses what chains to the CAs and is not to be let in all the
	// same. It is called for resumed sessions too, and must not block.
	Judge func(cert *x509.Certificate) error

	// Verify, if set, makes the certificate of a peer that asked for no server name
	// decide. A certificate that chains to the Source's CAs is the Source's own;
	// Verify is called for any other, and returns an error or records the owner.
	// Where the Source has no CAs, peers without a certificate are its own. Cert, CAs,
	// Lists and Judge are ignored. Verify is called for resumed sessions too, with the
	// peer's certificate and its intermediates, before the peer has proved that it
	// has the key; it must not block.
	Verify func(chain []*x509.Certificate) error

	// Bare lets peers without a certificate in where Verify is set, as the
	// Source's own, though it has CAs.
	Bare bool
}

// configFor returns the Config of a guest's handshake.
func (g *Guest) configFor(s *Source, listener, base *tls.Config, m *material) *tls.Config {
	config := s.trustingConfig
	if g.Verify != nil {
		config = s.askingConfig
	}
	c := config(base, m, g)
	isolateSessions(c, listener, g.Key)
	return c
}

// trustingConfig is for a handshake of a peer that the guest's CAs have to have issued.
func (s *Source) trustingConfig(base *tls.Config, m *material, g *Guest) *tls.Config {
	var cas *x509.CertPool
	if g.CAs != nil {
		cas = g.CAs()
	}
	c := s.serverConfig(base, cmp.Or(g.Cert, m.cert), cas, g.Lists)
	if verify := c.VerifyConnection; verify != nil && g.Judge != nil {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			if err := g.Judge(state.PeerCertificates[0]); err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
			}
			return verify(state)
		}
	}
	return c
}

// askingConfig is for a handshake of which the peer's certificate decides whose it
// is. It names no CA to the peer: the names would tell every peer of all tenants.
func (s *Source) askingConfig(base *tls.Config, m *material, g *Guest) *tls.Config {
	c := s.serverConfig(base, m.cert, nil, nil)
	c.ClientAuth = tls.RequireAnyClientCert
	if m.pool == nil || g.Bare {
		c.ClientAuth = tls.RequestClientCert
	}
	c.VerifyConnection = func(state tls.ConnectionState) error {
		chain := state.PeerCertificates
		if len(chain) == 0 {
			return nil // TLS has refused it where one is needed
		}
		if Issued(chain, m.pool, time.Now()) {
			return s.judge(state, m.lists)
		}
		switch err := g.Verify(chain); {
		case errors.Is(err, ErrRevoked):
			return s.refuse(err)
		case err != nil:
			return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
		}
		return s.judge(state, nil)
	}
	return c
}

// sessionMark begins what isolateSessions adds to a session.
const sessionMark = "konnectivity guest "

// isolateSessions makes c resume only sessions of its own key. All are sealed with the
// listener's keys, which renew themselves, so what tells them apart is inside.
func isolateSessions(c, listener *tls.Config, key string) {
	mark := []byte(sessionMark + key)
	c.WrapSession = func(state tls.ConnectionState, session *tls.SessionState) ([]byte, error) {
		session.Extra = append(session.Extra, mark)
		return listener.EncryptTicket(state, session)
	}
	c.UnwrapSession = func(ticket []byte, state tls.ConnectionState) (*tls.SessionState, error) {
		session, err := listener.DecryptTicket(ticket, state)
		if err != nil || session == nil {
			return nil, err
		}
		if !slices.ContainsFunc(session.Extra, func(extra []byte) bool { return string(extra) == string(mark) }) {
			return nil, nil // a full handshake decides
		}
		return session, nil
	}
}

// refusal returns the Config of a handshake that is refused: without a certificate,
// TLS says unrecognized_name to the peer.
func refusal(base *tls.Config) *tls.Config {
	return &tls.Config{MinVersion: base.MinVersion, CipherSuites: base.CipherSuites, SessionTicketsDisabled: true}
}
