package socks5

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	armon "github.com/armon/go-socks5"

	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// Numbers of RFC 1928 §3 and §4 that armon/go-socks5 does not export.
const (
	version5      = 5
	noAcceptable  = 0xff
	addressIPv4   = 1
	addressName   = 3
	addressIPv6   = 4
	requestHeader = 4 // VER CMD RSV ATYP
)

// readAhead is the buffer of a handshake: more than its longest message, a user
// and password of 513 bytes (RFC 1929 §2), and small enough that every client
// in its handshake can have one.
const readAhead = 1 << 10

// readers holds unused buffers, so that a relayed connection needs none.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readAhead) }}

func giveBack(br *bufio.Reader) {
	br.Reset(nil)
	readers.Put(br)
}

// request is a valid CONNECT.
type request struct {
	address string // host:port
	ahead   []byte // that came behind the request
}

// handshake reads everything up to the request. Its errors are a *refusal.
func (s *Server) handshake(c *client) (*request, error) {
	// The first byte is read without a buffer: a silent client gets none.
	var first [1]byte
	if _, err := io.ReadFull(c.Conn, first[:]); err != nil {
		return nil, broken(err)
	}
	if first[0] != version5 {
		return nil, foreign(first[0])
	}
	br := readers.Get().(*bufio.Reader)
	br.Reset(c.Conn)
	defer giveBack(br)
	address, err := s.negotiate(c, br)
	if err != nil {
		return nil, err
	}
	ahead, _ := br.Peek(br.Buffered())
	return &request{address: address, ahead: slices.Clone(ahead)}, nil
}

func (s *Server) negotiate(c *client, br *bufio.Reader) (address string, _ error) {
	if err := s.authenticate(c, br); err != nil {
		return "", err
	}
	req, err := readRequest(br)
	if err != nil {
		return "", err
	}
	if address, err = destination(req.DestAddr); err != nil {
		return "", refused(reasonAddress, replyTo(replyGeneral), err)
	}
	return address, nil
}

// checkFor is a front.Checker for one client, in the form that armon/go-socks5
// expects.
type checkFor struct {
	front.Checker
	client *client
}

// Valid implements armon.CredentialStore.
func (c checkFor) Valid(user, password string) bool {
	return c.Check(c.client.shaking, c.client.Conn.RemoteAddr(), user, password)
}

// authenticate reads the methods that a client offers, and performs the configured
// one, even if the client lists another first.
func (s *Server) authenticate(c *client, br *bufio.Reader) error {
	n, err := br.ReadByte()
	if err != nil {
		return broken(err)
	}
	methods, err := br.Peek(int(n))
	if err != nil {
		return broken(err)
	}
	var method armon.Authenticator = armon.NoAuthAuthenticator{}
	if s.opts.Credentials != nil {
		method = armon.UserPassAuthenticator{Credentials: checkFor{s.opts.Credentials, c}}
	}
	offered := bytes.IndexByte(methods, method.GetCode()) >= 0
	_, _ = br.Discard(int(n))
	if !offered {
		return refused(reasonMethod, []byte{version5, noAcceptable}, errMethod)
	}
	_, err = method.Authenticate(br, c.Conn)
	switch {
	case errors.Is(err, armon.UserAuthFailed):
		return refused(reasonAuth, nil, errors.New("wrong user or password")) // already answered
	case err != nil && isEnd(err):
		return broken(err)
	case err != nil:
		return refused(reasonProtocol, []byte{1, 1}, err) // RFC 1929 §2: version 1, failure
	}
	return nil
}

// readRequest checks the fixed part before the parser does, because the
// parser's errors name no cause.
func readRequest(br *bufio.Reader) (*armon.Request, error) {
	head, err := br.Peek(requestHeader)
	if err != nil {
		return nil, broken(err)
	}
	command, kind := head[1], head[3]
	switch {
	case head[0] != version5:
		return nil, refused(reasonProtocol, replyTo(replyGeneral), fmt.Errorf("request of version %d", head[0]))
	case command != armon.ConnectCommand:
		return nil, refused(reasonCommand, replyTo(replyCommand), fmt.Errorf("command %d is not supported, only CONNECT is", command))
	case kind != addressIPv4 && kind != addressName && kind != addressIPv6:
		return nil, refused(reasonAddress, replyTo(replyAddressType), fmt.Errorf("unknown address type %d", kind))
	}
	req, err := armon.NewRequest(br)
	if err != nil {
		return nil, broken(err)
	}
	return req, nil
}

// destination returns host:port, as a Dialer expects it.
func destination(d *armon.AddrSpec) (string, error) {
	host := d.FQDN
	if host == "" && d.IP != nil {
		host = d.IP.String()
	}
	if bytes.ContainsRune([]byte(d.FQDN), ':') && net.ParseIP(d.FQDN) == nil {
		return "", errors.New("the name has a colon and is not an IPv6 address")
	}
	address := tunnel.JoinAddress(host, uint16(d.Port))
	_, _, err := tunnel.SplitAddress(address)
	return address, err
}

// addrText returns a as text, even if a connection has no address.
func addrText(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}
