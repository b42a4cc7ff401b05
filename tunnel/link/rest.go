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
// so far, as long as the connection.
type rest struct {
	socket syscall.RawConn  // nil: the link does not rest
	buffer [2]*bytes.Buffer // of crypto/tls
}

// handshaken is what crypto/tls needs of its Config once it has accepted a connection.
var handshaken = &tls.Config{DynamicRecordSizingDisabled: true}

// restOf returns the zero rest for a connection that is not TLS on a socket of its own, and
// where crypto/tls has no buffers of these names. It has TLS forget the certificates by which
// the peer has proved who it is, and at a server the CAs that it proved it to: they take 3 KB
// each, and a link asks for them no more.
func restOf(conn net.Conn) (r rest) {
	secure, ok := tunnel.Under[*tls.Conn](conn)
	if !ok {
		return rest{}
	}
	if certs := private[[]*x509.Certificate](secure, "peerCertificates"); certs != nil {
		*certs = nil
	}
	if chains := private[[][]*x509.Certificate](secure, "verifiedChains"); chains != nil {
		*chains = nil
	}
	if client := private[bool](secure, "isClient"); client != nil && !*client {
		if config := private[*tls.Config](secure, "config"); config != nil {
			*config = handshaken
		}
	}
	r.buffer = [2]*bytes.Buffer{private[bytes.Buffer](secure, "rawInput"), private[bytes.Buffer](secure, "hand")}
	socket, ok := tunnel.Under[syscall.Conn](secure.NetConn())
	if ok && r.buffer[0] != nil && r.buffer[1] != nil {
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

// can reports whether the link may rest: whatever comes next has yet to leave the socket.
// Only between two reads is that known, and only if the last one got less than it had room
// for.
func (r *rest) can() bool {
	return r.socket != nil && r.buffer[0].Len() == 0 && r.buffer[1].Len() == 0
}

// wait drops what TLS read into, and returns once the socket has something to read, has
// ended or has failed.
func (r *rest) wait() {
	for _, b := range r.buffer {
		*b = bytes.Buffer{}
	}
	tunnel.AwaitInput(r.socket)
}
