package frontend

import (
	"crypto/tls"

	"konnectivity/tunnel"
)

// owner is whose a connection is, as was found in its handshake.
type owner struct {
	who any
	err error
}

// Own notes in a handshake whose the connection is, or why it is nobody's; that
// is what the log says then, rather than what TLS makes of it. It is for a
// tls.Config's GetConfigForClient, and for what that has called while the
// handshake lasts. Elsewhere it notes nothing and returns false; then the handshake
// must fail, or the connection would be taken for nobody's.
func Own(hello *tls.ClientHelloInfo, who any, err error) (noted bool) {
	m, noted := tunnel.Under[*meter](hello.Conn)
	if noted {
		m.owner.owner = owner{who, err}
	}
	return noted
}

// Port is the name of the port it came in by: Config.Name.
func (c *Conn) Port() string { return c.front.cfg.Name }

// Owner is what Own has noted; nil: nothing.
func (c *Conn) Owner() any { return c.owner.who }
