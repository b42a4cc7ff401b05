package frontend

import "crypto/tls"

// owner is whose a connection is, as was found in its handshake.
type owner struct {
	who any
	err error
}

type ownerKey struct{}

// Own notes in a handshake whose the connection is, or why it is nobody's; that
// is what the log says then, rather than what TLS makes of it. It is for a
// tls.Config's GetConfigForClient and does nothing elsewhere.
func Own(hello *tls.ClientHelloInfo, who any, err error) {
	if o, ok := hello.Context().Value(ownerKey{}).(*owner); ok {
		*o = owner{who, err}
	}
}

// Port is the name of the port it came in by: Config.Name.
func (c *Conn) Port() string { return c.front.cfg.Name }

// Owner is what Own has noted; nil: nothing.
func (c *Conn) Owner() any { return c.owner.who }
