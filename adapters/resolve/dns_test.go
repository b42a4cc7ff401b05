package resolve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// fakeDNS is a DNS server at the other end of in-memory connections, and the
// Dialer that makes them.
type fakeDNS struct {
	// answer fills in the response; nil, or false, means silence.
	answer func(q dnsmessage.Question, m *dnsmessage.Message) bool

	dialErr error
	dead    bool // accepts, never reads
	hangs   bool // swallows dials

	mu      sync.Mutex
	wg      sync.WaitGroup
	dials   int
	asked   []string // "A name."
	conns   []net.Conn
	maxOpen int
	open    int
}

func (d *fakeDNS) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if d.hangs {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials++
	if d.dialErr != nil {
		return nil, d.dialErr
	}
	if f.Address != "10.0.0.10:53" {
		return nil, &tunnel.DialError{Failure: tunnel.FailRefused, Address: f.Address}
	}
	near, far := net.Pipe()
	d.conns = append(d.conns, far)
	d.open++
	d.maxOpen = max(d.maxOpen, d.open)
	d.wg.Go(func() {
		defer func() { d.mu.Lock(); d.open--; d.mu.Unlock() }()
		d.serve(far)
	})
	return tunnel.Wrap(near), nil
}

func (d *fakeDNS) serve(c net.Conn) {
	defer c.Close()
	if d.dead {
		_, _ = io.Copy(io.Discard, c)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var wmu sync.Mutex
	for {
		msg, err := readPrefixed(c)
		if err != nil {
			return
		}
		wg.Go(func() {
			if out := d.respond(msg); out != nil {
				wmu.Lock()
				defer wmu.Unlock()
				_, _ = c.Write(out)
			}
		})
	}
}

func (d *fakeDNS) respond(msg []byte) []byte {
	var q dnsmessage.Message
	if q.Unpack(msg) != nil || len(q.Questions) != 1 {
		return nil
	}
	d.mu.Lock()
	d.asked = append(d.asked, strings.TrimPrefix(q.Questions[0].Type.String(), "Type")+" "+q.Questions[0].Name.String())
	d.mu.Unlock()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true}, Questions: q.Questions}
	if d.answer == nil || !d.answer(q.Questions[0], &m) {
		return nil
	}
	return packMessage(&m)
}

func packMessage(m *dnsmessage.Message) []byte {
	out, err := m.AppendPack(make([]byte, 2))
	if err != nil {
		panic(err)
	}
	binary.BigEndian.PutUint16(out, uint16(len(out)-2))
	return out
}

func readPrefixed(c io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(c, msg)
	return msg, err
}

func (d *fakeDNS) count() (dials, asked int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials, len(d.asked)
}

// hangUp closes all connections from the server's side.
func (d *fakeDNS) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.Close()
	}
}

// guest is a Guest over d, closed with the test.
func (d *fakeDNS) guest(t testing.TB) *Guest {
	g := NewGuest(GuestOptions{
		Server: func(context.Context) ([]netip.Addr, error) { return addrs("10.0.0.10"), nil },
		Dialer: d,
	})
	t.Cleanup(func() { g.Close(); d.hangUp(); d.wg.Wait() })
	return g
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func rr(owner string, ttl uint32, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(owner), Class: dnsmessage.ClassINET, TTL: ttl}, Body: body}
}

func a(owner string, ttl uint32, addr string) dnsmessage.Resource {
	ip := netip.MustParseAddr(addr)
	if ip.Is4() {
		return rr(owner, ttl, &dnsmessage.AResource{A: ip.As4()})
	}
	return rr(owner, ttl, &dnsmessage.AAAAResource{AAAA: ip.As16()})
}

func cname(owner string, ttl uint32, target string) dnsmessage.Resource {
	return rr(owner, ttl, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(target)})
}

func soa(ttl, minimum uint32) dnsmessage.Resource {
	return rr("example.", ttl, &dnsmessage.SOAResource{NS: dnsmessage.MustNewName("ns."), MBox: dnsmessage.MustNewName("m."), MinTTL: minimum})
}

// zone answers from records: those of the asked kind, and all aliases.
func zone(records ...dnsmessage.Resource) func(dnsmessage.Question, *dnsmessage.Message) bool {
	return func(q dnsmessage.Question, m *dnsmessage.Message) bool {
		known := false
		for _, r := range records {
			_, alias := r.Body.(*dnsmessage.CNAMEResource)
			_, v4 := r.Body.(*dnsmessage.AResource)
			_, v6 := r.Body.(*dnsmessage.AAAAResource)
			known = known || strings.EqualFold(r.Header.Name.String(), q.Name.String())
			if alias || v4 && q.Type == dnsmessage.TypeA || v6 && q.Type == dnsmessage.TypeAAAA {
				m.Answers = append(m.Answers, r)
			}
			if _, ok := r.Body.(*dnsmessage.SOAResource); ok {
				m.Authorities = append(m.Authorities, r)
			}
		}
		if !known {
			m.RCode, m.Answers = dnsmessage.RCodeNameError, nil
		}
		return true
	}
}

func parse(t *testing.T, m *dnsmessage.Message) (reply, error) {
	t.Helper()
	m.Response = true
	if m.Questions == nil {
		m.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("www.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
	}
	return parseReply(packMessage(m)[2:], dnsmessage.MustNewName("www.example."), dnsmessage.TypeA)
}

func TestParseReply(t *testing.T) {
	type rs = []dnsmessage.Resource
	loop := rs{cname("www.example.", 60, "b.example."), cname("b.example.", 60, "www.example.")}
	long := rs{cname("www.example.", 60, "c0.example.")}
	for i := range 20 {
		long = append(long, cname(fmt.Sprintf("c%d.example.", i), 60, fmt.Sprintf("c%d.example.", i+1)))
	}
	long = append(long, a("c20.example.", 60, "192.0.2.1"))
	for name, c := range map[string]struct {
		m     dnsmessage.Message
		addrs []netip.Addr
		ttl   time.Duration
		gone  bool
		err   error
	}{
		"address":             {m: dnsmessage.Message{Answers: rs{a("www.example.", 60, "192.0.2.1")}}, addrs: addrs("192.0.2.1"), ttl: time.Minute},
		"case does not count": {m: dnsmessage.Message{Answers: rs{a("WWW.Example.", 60, "192.0.2.1")}}, addrs: addrs("192.0.2.1"), ttl: time.Minute},
		"two, least TTL":      {m: dnsmessage.Message{Answers: rs{a("www.example.", 60, "192.0.2.1"), a("www.example.", 5, "192.0.2.2")}}, addrs: addrs("192.0.2.1", "192.0.2.2"), ttl: 5 * time.Second},
		"alias, any order": {m: dnsmessage.Message{Answers: rs{a("b.example.", 60, "192.0.2.1"), cname("www.example.", 7, "B.example.")}},
			addrs: addrs("192.0.2.1"), ttl: 7 * time.Second},
		"another's address": {m: dnsmessage.Message{Answers: rs{a("evil.example.", 60, "192.0.2.1")}}, ttl: defaultNegative},
		"alias to nothing":  {m: dnsmessage.Message{Answers: rs{cname("www.example.", 60, "b.example.")}, Authorities: rs{soa(20, 10)}}, ttl: 10 * time.Second},
		"other kind":        {m: dnsmessage.Message{Answers: rs{a("www.example.", 60, "2001:db8::1")}}, ttl: defaultNegative},
		"loop":              {m: dnsmessage.Message{Answers: loop}, err: errServFail},
		"endless":           {m: dnsmessage.Message{Answers: long}, err: errServFail},
		"NXDOMAIN":          {m: dnsmessage.Message{Header: dnsmessage.Header{RCode: dnsmessage.RCodeNameError}, Authorities: rs{soa(3, 60)}}, ttl: 3 * time.Second, gone: true},
		"NXDOMAIN for long": {m: dnsmessage.Message{Header: dnsmessage.Header{RCode: dnsmessage.RCodeNameError}, Authorities: rs{soa(86400, 86400)}}, ttl: maxNegative, gone: true},
		"SERVFAIL":          {m: dnsmessage.Message{Header: dnsmessage.Header{RCode: dnsmessage.RCodeServerFailure}}, err: errServFail},
		"REFUSED":           {m: dnsmessage.Message{Header: dnsmessage.Header{RCode: dnsmessage.RCodeRefused}}, err: errServFail},
		"TTL 2^31":          {m: dnsmessage.Message{Answers: rs{a("www.example.", 1<<31, "192.0.2.1")}}, addrs: addrs("192.0.2.1")},
	} {
		t.Run(name, func(t *testing.T) {
			got := testutil.Must(parse(t, &c.m))(t)
			if !errors.Is(got.err, c.err) || !slices.Equal(got.addrs, c.addrs) || got.gone != c.gone || c.err == nil && got.ttl != c.ttl {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestParseReplyRefuses(t *testing.T) {
	other := []dnsmessage.Question{{Name: dnsmessage.MustNewName("other."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
	kind := []dnsmessage.Question{{Name: dnsmessage.MustNewName("www.example."), Type: dnsmessage.TypeAAAA, Class: dnsmessage.ClassINET}}
	for name, m := range map[string]dnsmessage.Message{
		"other name": {Questions: other}, "other kind": {Questions: kind}, "no question": {Questions: []dnsmessage.Question{}},
		"other opcode": {Header: dnsmessage.Header{OpCode: 4}},
	} {
		testutil.Equal(t, testutil.Err(parse(t, &m)), errBadMessage, "%s", name)
	}
}

func TestParseReplyWithAThousandAddresses(t *testing.T) {
	var m dnsmessage.Message
	for i := range 1000 {
		m.Answers = append(m.Answers, a("www.example.", 60, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()))
	}
	testutil.Equal(t, len(testutil.Must(parse(t, &m))(t).addrs), maxAddresses, "addresses")
}

func FuzzReply(f *testing.F) {
	name := dnsmessage.MustNewName("www.example.")
	for _, records := range [][]dnsmessage.Resource{
		{a("www.example.", 60, "192.0.2.1")}, {cname("www.example.", 1, "b."), a("b.", 1, "192.0.2.2")}, {cname("www.example.", 1, "www.example.")}, {soa(1, 1)},
	} {
		m := dnsmessage.Message{Header: dnsmessage.Header{Response: true}, Answers: records, Authorities: []dnsmessage.Resource{soa(1, 2)},
			Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		f.Add(packMessage(&m)[2:])
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		got, err := parseReply(msg, name, dnsmessage.TypeA)
		testutil.Holds(t, err != nil || got.err != nil || got.ttl >= 0 && len(got.addrs) <= maxAddresses, "%+v", got)
		testutil.Holds(t, err == nil && got.err == nil || len(got.addrs) == 0, "a failure with addresses: %+v, %v", got, err)
	})
}
