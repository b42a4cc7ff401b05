package nameserver

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/memory"
	"konnectivity/tunnel/race"
)

const (
	// OtherKind is how long a question for one kind of addresses waits once those of the other have
	// come: some servers never answer AAAA, and Go's resolver waits 5 s for it, two times, which no
	// dial survives. RFC 8305 §3 has 50 ms, but a round trip, as through a tunnel, may be longer.
	OtherKind = 250 * time.Millisecond

	// cameFor is how long it is known that addresses came: the other question is asked again, of
	// each server.
	cameFor = roundTime

	// mostCame bounds how many names are known so.
	mostCame = 1024
)

// question is for the addresses of one kind of a name.
type question struct {
	name string
	kind dnsmessage.Type
}

// other is for those of the other kind.
func (q question) other() question {
	q.kind = dnsmessage.TypeA + dnsmessage.TypeAAAA - q.kind
	return q
}

// kinds are the questions that are under way, by all resolvers of the process.
type kinds struct {
	routed func(netip.Addr) bool

	mu    sync.Mutex
	asked map[question]map[net.Conn]struct{}
	came  memory.Memory[question, struct{}] // addresses that this machine has a route to
}

func newKinds(routed func(netip.Addr) bool) *kinds {
	return &kinds{routed: routed, asked: map[question]map[net.Conn]struct{}{}, came: memory.New[question, struct{}](mostCame)}
}

var all = newKinds(race.Routed)

// over returns a connection for one question, as Go's resolver makes one for each. It is a
// net.PacketConn where conn is: that tells the resolver how to write messages.
func (k *kinds) over(conn net.Conn) net.Conn {
	a := &asking{Conn: conn, kinds: k}
	if datagrams, ok := conn.(net.PacketConn); ok {
		a.datagrams = true
		return struct {
			net.Conn
			packets
		}{a, datagrams}
	}
	return a
}

// packets is what a net.PacketConn has and a net.Conn has not.
type packets interface {
	ReadFrom(b []byte) (int, net.Addr, error)
	WriteTo(b []byte, to net.Addr) (int, error)
}

// ask notes a question that conn is about to carry.
func (k *kinds) ask(q question, conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked[q] == nil {
		k.asked[q] = map[net.Conn]struct{}{}
	}
	k.asked[q][conn] = struct{}{}
	if k.came.Has(q.other()) {
		hurry(conn)
	}
}

// done forgets it.
func (k *kinds) done(q question, conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if delete(k.asked[q], conn); len(k.asked[q]) == 0 {
		delete(k.asked, q)
	}
}

// answered notes addresses. Where none can be reached, those of the other kind are worth any wait.
func (k *kinds) answered(q question, addrs []netip.Addr) {
	for _, addr := range addrs {
		if !k.routed(addr) {
			continue
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.came.Put(q, struct{}{}, cameFor)
		for conn := range k.asked[q.other()] {
			hurry(conn)
		}
		return
	}
}

// hurry leaves conn OtherKind, and no longer than the resolver does, or than it had before.
func hurry(conn net.Conn) {
	time.AfterFunc(OtherKind, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
}

// asking is a connection for one question.
type asking struct {
	net.Conn
	kinds     *kinds
	datagrams bool

	id    uint16
	about question // the zero value: not for addresses, or nothing was asked yet
}

// Write implements net.Conn.
func (a *asking) Write(b []byte) (int, error) {
	const size = 2 // of the length before a message over TCP
	message := b
	if !a.datagrams {
		message = b[min(size, len(b)):]
	}
	var p dnsmessage.Parser
	if header, err := p.Start(message); err == nil && a.about.kind == 0 {
		if q, err := p.Question(); err == nil && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA) {
			a.id, a.about = header.ID, question{q.Name.String(), q.Type}
			a.kinds.ask(a.about, a.Conn)
		}
	}
	return a.Conn.Write(b)
}

// Read implements net.Conn. An answer over TCP is looked at where it comes in one piece.
func (a *asking) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if err == nil && n >= 2 && binary.BigEndian.Uint16(b) == a.id && a.about.kind != 0 {
		a.kinds.answered(a.about, addresses(b[:n]))
	}
	return n, err
}

// Close implements net.Conn.
func (a *asking) Close() error {
	if a.about.kind != 0 {
		a.kinds.done(a.about, a.Conn)
	}
	return a.Conn.Close()
}

// addresses are those in an answer; none where it is no good one.
func addresses(answer []byte) (found []netip.Addr) {
	var p dnsmessage.Parser // a Message would bring every kind of record into the program
	if _, err := p.Start(answer); err != nil || p.SkipAllQuestions() != nil {
		return nil
	}
	for {
		head, err := p.AnswerHeader()
		switch {
		case err != nil:
			return found
		case head.Type == dnsmessage.TypeA, head.Type == dnsmessage.TypeAAAA:
			addr, err := Address(&p, head.Type)
			if err != nil {
				return nil
			}
			found = append(found, addr)
		case p.SkipAnswer() != nil:
			return nil
		}
	}
}

// Address reads an answer whose header was read, of the kind A or AAAA.
func Address(p *dnsmessage.Parser, kind dnsmessage.Type) (netip.Addr, error) {
	if kind == dnsmessage.TypeA {
		r, err := p.AResource()
		return netip.AddrFrom4(r.A), err
	}
	r, err := p.AAAAResource()
	return netip.AddrFrom16(r.AAAA), err
}
