package frontend

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/pires/go-proxyproto"
)

const (
	// maxProxyHeader bounds a PROXY protocol header. Version 1 has at most 107
	// bytes; version 2 has 52 with IPv6 addresses, and what a cloud adds to
	// them, in the extreme a client's certificate.
	maxProxyHeader = 4 << 10

	// proxyReadAhead is what may be read beyond the header. A line of version 1
	// fits.
	proxyReadAhead = 128

	// maxProxyLine is how long a header of version 1 may be, with its CRLF.
	maxProxyLine = 107

	// proxyWeight is the cost of a connection until its header has been read.
	proxyWeight = silentWeight + maxProxyHeader + 2*proxyReadAhead
)

// errProxyHeader is the error of a connection without the header it needs.
var errProxyHeader = errors.New("a trusted load balancer must begin each connection with a PROXY protocol header")

// errUninvited is the error of a connection with an unexpected header.
var errUninvited = errors.New("it began with a PROXY protocol header, and its address is not among those trusted to send one")

// unwrap reads the PROXY protocol header of a connection that has sent
// something. From then on the connection counts as one from the address in it.
// It returns when the peer has sent something behind the header, too.
func (c *Conn) unwrap() error {
	slots := c.front.cfg.PreAuth.slots
	slots.Weigh(c, proxyWeight)
	c.meter.left.Store(maxProxyHeader + proxyReadAhead)
	from, rest, err := readProxyHeader(c.meter)
	if err != nil {
		return err
	}
	if from != nil {
		c.remote = from
		slots.Move(c, from)
	}
	if c.meter.head = rest; len(rest) > 0 {
		return nil
	}
	return c.meter.await()
}

// readProxyHeader returns the address that a header names, nil if the load
// balancer speaks for itself (as in its health checks), and the bytes read beyond
// the header.
func readProxyHeader(r io.Reader) (from *net.TCPAddr, rest []byte, err error) {
	ahead := bufio.NewReaderSize(r, proxyReadAhead)
	if err := awaitProxyLine(ahead); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errProxyHeader, err)
	}
	header, err := proxyproto.Read(ahead)
	if err != nil {
		return nil, nil, proxyHeaderError(ahead, err)
	}
	rest, _ = ahead.Peek(ahead.Buffered())
	if header.Command.IsLocal() {
		return nil, rest, nil
	}
	from, _, ok := header.TCPAddrs()
	if !ok {
		return nil, nil, fmt.Errorf("%w with the address of a TCP client", errProxyHeader)
	}
	return from, rest, nil
}

// awaitProxyLine returns once all of a header of version 1 is there, or it is too
// long, or it is none: proxyproto would refuse one that comes in several segments.
func awaitProxyLine(ahead *bufio.Reader) error {
	for ahead.Buffered() < maxProxyLine {
		if _, err := ahead.Peek(ahead.Buffered() + 1); err != nil {
			return err
		}
		sent, _ := ahead.Peek(ahead.Buffered())
		if !bytes.HasPrefix(proxyproto.SIGV1, sent[:min(len(sent), len(proxyproto.SIGV1))]) || bytes.IndexByte(sent, '\n') >= 0 {
			return nil
		}
	}
	return nil
}

// proxyHeaderError tells a load balancer that left, as after a health check,
// from one that sends something else.
func proxyHeaderError(ahead *bufio.Reader, err error) error {
	if !errors.Is(err, proxyproto.ErrNoProxyProtocol) {
		return fmt.Errorf("%w: %w", errProxyHeader, err)
	}
	if sent, _ := ahead.Peek(ahead.Buffered()); beginsProxyHeader(sent) {
		return io.EOF
	}
	return errProxyHeader
}

// beginsProxyHeader reports whether p may become a header of either version.
func beginsProxyHeader(p []byte) bool {
	return bytes.HasPrefix(proxyproto.SIGV1, p) || bytes.HasPrefix(proxyproto.SIGV2, p)
}

// uninvited replaces the error of a handshake that failed since the first bytes
// are those of a PROXY protocol header.
func uninvited(err error) error {
	if notTLS, ok := errors.AsType[tls.RecordHeaderError](err); ok && beginsProxyHeader(notTLS.RecordHeader[:]) {
		return errUninvited
	}
	return err
}
