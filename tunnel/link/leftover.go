package link

import (
	"bytes"
	"crypto/tls"
	"net"
	"reflect"

	"konnectivity/tunnel"
)

// leftover is what TLS reads into below a link: buffers that have grown to the largest
// record or handshake message so far, and that crypto/tls keeps as long as the
// connection. On a server of many clusters, most links wait for pings all their lives.
//
// They are fields of *tls.Conn that it does not export; nil: it has none of that name and
// type, which costs memory and nothing else.
type leftover [2]*bytes.Buffer

// minLeftover is the capacity from which a buffer is dropped. One that only takes pings
// has 576 bytes.
const minLeftover = 1 << 10

func leftoverOf(conn net.Conn) (l leftover) {
	secure, ok := tunnel.Under[*tls.Conn](conn)
	if !ok {
		return l
	}
	for i, name := range [...]string{"rawInput", "hand"} {
		field := reflect.ValueOf(secure).Elem().FieldByName(name)
		if field.IsValid() && field.Type() == reflect.TypeFor[bytes.Buffer]() {
			l[i] = (*bytes.Buffer)(field.Addr().UnsafePointer())
		}
	}
	return l
}

// drop frees the buffers that are empty. Only the connection's reader may call it, between
// two reads.
func (l leftover) drop() {
	for _, b := range l {
		if b != nil && b.Len() == 0 && b.Cap() >= minLeftover {
			*b = bytes.Buffer{}
		}
	}
}
