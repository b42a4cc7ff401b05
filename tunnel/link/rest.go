package link

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"reflect"
	"syscall"

	"konnectivity/tunnel"
)

// errRests ends a reader whose link has no streams: the next one begins once the socket has
// something to read.
var errRests = errors.New("the link rests")

// rest is how a link without streams waits. Most links of a server of many clusters wait
// for pings all their lives, so this takes no more than a goroutine that has never run TLS,
// with 2 KiB of stack. The link's buffer is given back, and crypto/tls made to drop the two
// that it reads into: it would keep them, grown to the largest record and handshake message
// so far, as long as the connection. A link that cannot rest, as on Windows, keeps all that,
// 20 KB or so.
type rest struct {
	socket syscall.RawConn  // nil: the link does not rest
	buffer [2]*bytes.Buffer // of crypto/tls
	input  *bytes.Reader    // of a record that it has opened, what has yet to be read
}

// handshaken is what crypto/tls needs of its Config once the handshake is over. A ticket that
// comes later is not kept: it would be one without the certificates that are forgotten here.
var handshaken = &tls.Config{DynamicRecordSizingDisabled: true, SessionTicketsDisabled: true}

// prepareRest has TLS forget what only a handshake asks for: the certificates by which the
// peer has proved who it is, and the Config with, on a server, the CAs of a tenant. They take
// 3 KB each. It returns the zero rest for a connection that is not TLS on a socket of its own,
// and where crypto/tls has no fields of these names.
func prepareRest(conn net.Conn) (r rest) {
	secure, ok := tunnel.Under[*tls.Conn](conn)
	if !ok {
		return rest{}
	}
	config, certs := private[*tls.Config](secure, "config"), private[[]*x509.Certificate](secure, "peerCertificates")
	chains := private[[][]*x509.Certificate](secure, "verifiedChains")
	if config != nil && certs != nil && chains != nil {
		*config, *certs, *chains = handshaken, nil, nil
	}
	r.buffer = [2]*bytes.Buffer{private[bytes.Buffer](secure, "rawInput"), private[bytes.Buffer](secure, "hand")}
	r.input = private[bytes.Reader](secure, "input")
	socket, ok := tunnel.Under[syscall.Conn](secure.NetConn())
	if ok && r.buffer[0] != nil && r.buffer[1] != nil && r.input != nil {
		r.socket, _ = tunnel.RawConn(socket)
	}
	return r
}

// private is a field that crypto/tls does not export; nil: it has none of that name and type.
func private[T any](c *tls.Conn, name string) *T {
	field := reflect.ValueOf(c).Elem().FieldByName(name)
	if !field.IsValid() || field.Type() != reflect.TypeFor[T]() {
		return nil
	}
	return (*T)(field.Addr().UnsafePointer())
}

// can reports whether the link may rest: whatever comes next has yet to leave the socket. It
// may be asked between two reads only.
func (r *rest) can() bool {
	return r.socket != nil && r.input.Len() == 0 && r.buffer[0].Len() == 0 && r.buffer[1].Len() == 0
}

// wait drops what TLS read into, and returns once the socket has something to read, has
// ended or has failed.
func (r *rest) wait() {
	for _, b := range r.buffer {
		*b = bytes.Buffer{}
	}
	*r.input = bytes.Reader{} // which is all read, and refers to the buffer
	tunnel.AwaitInput(r.socket)
}
