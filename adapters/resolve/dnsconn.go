package resolve

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/nameserver"
	"konnectivity/tunnel"
)

const (
	// dnsPort is DNS over TCP.
	dnsPort = 53

	// maxDNSConns bounds simultaneous connections to the DNS; further lookups
	// wait for their turn.
	maxDNSConns = 32

	// maxIdleDNS is how many connections wait for the next lookup, and
	// idleDNS how long: less than the 10 s after which CoreDNS hangs up.
	maxIdleDNS = 2
	idleDNS    = 5 * time.Second

	// dnsBuffer holds most responses whole.
	dnsBuffer = 1 << 10
)

// kinds are the records to ask for, in this order.
var kinds = [...]dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}

// dnsConn is a connection to a DNS server; one lookup at a time uses it.
type dnsConn struct {
	conn  tunnel.Conn
	br    *bufio.Reader
	timer *time.Timer // closes the connection when it is idle for too long; used by the pool
}

func newDNSConn(c tunnel.Conn) *dnsConn {
	return &dnsConn{conn: c, br: bufio.NewReaderSize(c, dnsBuffer)}
}

// query asks for all kinds of addresses of name at once. replies has one entry
// for each kind. whole reports whether all arrived, so that the connection can
// be used again. An error means that no usable reply arrived.
func (c *dnsConn) query(ctx context.Context, name dnsmessage.Name) (replies [len(kinds)]reply, whole bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	first := uint16(rand.Uint32())
	if err = c.send(name, first); err == nil {
		replies, whole, err = c.receive(name, first)
	}
	if !stop() {
		whole = false
		if err != nil {
			err = context.Cause(ctx)
		}
	}
	if whole {
		whole = c.conn.SetDeadline(time.Time{}) == nil
	}
	return replies, whole, err
}

func (c *dnsConn) send(name dnsmessage.Name, first uint16) error {
	var out []byte
	for i, kind := range kinds {
		msg, err := packQuery(first+uint16(i), name, kind)
		if err != nil {
			return err
		}
		out = append(out, msg...)
	}
	_, err := c.conn.Write(out)
	return err
}

// receive reads the replies, in any order.
func (c *dnsConn) receive(name dnsmessage.Name, first uint16) (replies [len(kinds)]reply, whole bool, err error) {
	var have [len(kinds)]bool
	for n := 0; n < len(kinds); n++ {
		msg, err := c.readMessage()
		if err != nil {
			return lacking(replies, have, err)
		}
		i := binary.BigEndian.Uint16(msg) - first
		if int(i) >= len(kinds) || have[i] {
			return lacking(replies, have, errBadMessage)
		}
		if replies[i], err = parseReply(msg, name, kinds[i]); err != nil {
			return lacking(replies, have, err)
		}
		have[i] = true
		if len(replies[i].addrs) > 0 {
			_ = c.conn.SetReadDeadline(time.Now().Add(nameserver.OtherKind))
		}
	}
	return replies, true, nil
}

// lacking accepts the replies that came before err, if one has addresses.
func lacking(replies [len(kinds)]reply, have [len(kinds)]bool, err error) ([len(kinds)]reply, bool, error) {
	found := false
	for i := range replies {
		if !have[i] {
			replies[i] = reply{err: err}
		}
		found = found || len(replies[i].addrs) > 0
	}
	if found {
		err = nil
	}
	return replies, false, err
}

// minMessage is the header of a DNS message (RFC 1035 §4.1.1).
const minMessage = 12

func (c *dnsConn) readMessage() ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(c.br, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n < minMessage {
		return nil, errBadMessage
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(c.br, msg)
	return msg, err
}

// idleConns keeps connections between lookups. The zero value is ready.
type idleConns struct {
	mu     sync.Mutex
	conns  []*dnsConn
	closed bool
}

func (p *idleConns) get() *dnsConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.conns) - 1; n >= 0; n-- {
		c := p.conns[n]
		p.conns = p.conns[:n]
		if c.timer.Stop() {
			return c
		}
	}
	return nil
}

func (p *idleConns) put(c *dnsConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.conns) >= maxIdleDNS || c.br.Buffered() > 0 {
		_ = c.conn.Close()
		return
	}
	c.timer = time.AfterFunc(idleDNS, func() { p.expire(c) })
	p.conns = append(p.conns, c)
}

func (p *idleConns) expire(c *dnsConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = slices.DeleteFunc(p.conns, func(other *dnsConn) bool { return other == c })
	_ = c.conn.Close()
}

// drop closes idle connections; close closes later ones too.
func (p *idleConns) drop() {
	for c := p.get(); c != nil; c = p.get() {
		_ = c.conn.Close()
	}
}

func (p *idleConns) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop()
}
