package nameserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/testutil"
)

// serveA answers A on a UDP port of loopback until the test ends, and AAAA that much later; 0:
// never.
func serveA(t *testing.T, later time.Duration) (at string) {
	conn := testutil.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	var late sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done; late.Wait() })
	go func() {
		defer close(done)
		for b := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if reply := answer(b[:n], "127.0.0.9"); reply != nil {
				_, _ = conn.WriteTo(reply, from)
			} else if reply := answer(b[:n], "::1"); reply != nil && later > 0 {
				late.Go(func() { time.Sleep(later); _, _ = conn.WriteTo(reply, from) })
			}
		}
	}()
	return conn.LocalAddr().String()
}

// serveAOverTCP is that, by TCP, where a connection has one question.
func serveAOverTCP(t *testing.T) (at string) {
	return testutil.Serve(t, func(c *net.TCPConn) {
		b := make([]byte, 512)
		n, err := io.ReadAtLeast(c, b, 14)
		if reply := answer(b[min(2, n):n], "127.0.0.9"); err == nil && reply != nil {
			_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
		}
		_, _ = io.Copy(io.Discard, c)
	})
}

// answer is a reply to a question for the kind of addr; nil: to any other.
func answer(asked []byte, addr string) []byte {
	var m dnsmessage.Message
	ip, kind := netip.MustParseAddr(addr), dnsmessage.TypeA
	if ip.Is6() {
		kind = dnsmessage.TypeAAAA
	}
	if m.Unpack(asked) != nil || m.Questions[0].Type != kind {
		return nil
	}
	q := m.Questions[0]
	var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: ip.As16()}
	if ip.Is4() {
		body = &dnsmessage.AResource{A: ip.As4()}
	}
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	reply.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: body}}
	packed, _ := reply.Pack()
	return packed
}

// asks is a resolver whose server is at an address, by one network.
func asks(network, at string) *Resolver {
	r := New(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	})
	r.PreferGo = true
	return r
}

// A server that never answers AAAA costs a moment. Go's resolver alone asks two times for 5 s.
func TestAKindThatIsNeverAnswered(t *testing.T) {
	for network, at := range map[string]string{"udp": serveA(t, 0), "tcp": serveAOverTCP(t)} {
		began := time.Now()
		found, err := asks(network, at).LookupNetIP(t.Context(), "ip", "never6."+network+".example.com.")
		testutil.Holds(t, err == nil && len(found) == 1 && found[0].Unmap().String() == "127.0.0.9", "%s: found %v, %v", network, found, err)
		testutil.AtMost(t, time.Since(began), 5*time.Second, "%s: it took", network)
	}
}

// Where addresses of one kind alone are wanted, those of the other are no reason to hurry.
func TestALookUpOfOneKind(t *testing.T) {
	r := asks("udp", serveA(t, 2*OtherKind+OtherKind/2)) // than two questions
	testutil.Must(r.LookupNetIP(t.Context(), "ip", "late6.example.com."))(t)
	found := testutil.Must(r.LookupNetIP(t.Context(), "ip6", "late6.example.com."))(t)
	testutil.Holds(t, len(found) == 1 && found[0].Is6() && !found[0].Is4In6(), "found %v", found)
}

// pending is a question that is under way, over a pipe.
type pending struct {
	net.Conn
	far net.Conn
	id  uint16
}

func (k *kinds) begin(t *testing.T, name string, kind dnsmessage.Type, id uint16) *pending {
	near, far := net.Pipe()
	p := &pending{Conn: k.over(datagrams{near}), far: far, id: id}
	t.Cleanup(func() { _ = p.Close(); _ = far.Close() })
	go func() { _, _ = far.Read(make([]byte, 512)) }()
	_ = p.SetDeadline(time.Now().Add(5 * time.Second)) // as the resolver does
	question := dnsmessage.Message{Header: dnsmessage.Header{ID: id}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	testutil.NoError(t, testutil.Err(p.Write(testutil.Must(question.Pack())(t))))
	return p
}

// datagrams is a pipe whose messages stay apart, as those of a pipe do.
type datagrams struct{ net.Conn }

func (d datagrams) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, errors.ErrUnsupported }
func (d datagrams) WriteTo([]byte, net.Addr) (int, error)  { return 0, errors.ErrUnsupported }

// waits is how long a question waits for an answer.
func (p *pending) waits(t *testing.T) time.Duration {
	began := time.Now()
	testutil.ErrorIs(t, testutil.Err(p.Read(make([]byte, 512))), os.ErrDeadlineExceeded, "a question that is not answered")
	return time.Since(began)
}

// Once addresses of one kind came, and can be reached, a question for the other has OtherKind. It
// has as long when it is asked again.
func TestHowLongTheOtherKindMayTake(t *testing.T) {
	for name, c := range map[string]struct {
		routed  bool
		replied string // of a name
		id      uint16
		want    time.Duration
	}{
		"its addresses came":            {true, "a.test.", 1, OtherKind},
		"addresses without a route":     {false, "a.test.", 1, 5 * time.Second},
		"addresses of another name":     {true, "b.test.", 1, 5 * time.Second},
		"an answer to another question": {true, "a.test.", 2, 5 * time.Second},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			k := newKinds(func(netip.Addr) bool { return c.routed })
			late := k.begin(t, "a.test.", dnsmessage.TypeAAAA, 7)
			soon := k.begin(t, c.replied, dnsmessage.TypeA, 1)
			asked := dnsmessage.Message{Header: dnsmessage.Header{ID: c.id}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.test."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
			go func() { _, _ = soon.far.Write(answer(testutil.Must(asked.Pack())(t), "192.0.2.1")) }()
			testutil.NoError(t, testutil.Err(soon.Read(make([]byte, 512))))
			testutil.Equal(t, late.waits(t), c.want, "it waited")
			again := k.begin(t, "a.test.", dnsmessage.TypeAAAA, 8)
			testutil.Equal(t, again.waits(t), c.want, "asked again, it waited")
			for _, p := range []*pending{late, soon, again} {
				_ = p.Close()
			}
			testutil.Equal(t, len(k.asked), 0, "questions that are kept")
		})
	}
}

// However often addresses come, a question has OtherKind from the first time on, and no longer than
// the resolver gives it.
func TestHurryMakesNothingLonger(t *testing.T) {
	for name, c := range map[string]struct{ given, want time.Duration }{
		"long": {5 * time.Second, OtherKind}, "short": {OtherKind / 2, OtherKind / 2},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			k := newKinds(func(netip.Addr) bool { return true })
			p := k.begin(t, "a.test.", dnsmessage.TypeAAAA, 7)
			_ = p.SetDeadline(time.Now().Add(c.given))
			go func() {
				for range 4 {
					k.answered(question{"a.test.", dnsmessage.TypeA}, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
					time.Sleep(OtherKind / 4)
				}
			}()
			testutil.Equal(t, p.waits(t), c.want, "it waited")
			testutil.NoError(t, p.Close())
			time.Sleep(OtherKind)
		})
	}
}

func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/operations.md"
	testutil.Says(t, page, "(two questions of %v ms;", int64(OtherKind/time.Millisecond))
	testutil.Says(t, page, "one in front of another costs each look-up %v ms", int64(roundTime/2/time.Millisecond))
	testutil.Says(t, page, "A search domain that is not answered costs %v s", int64(2*roundTime/time.Second))
	testutil.Says(t, page, "(two handshakes of %v s)", int64(handshakeTime/time.Second))
}

// What is found in an answer is what a reader of whole messages finds, which programs do without.
func FuzzAddresses(f *testing.F) {
	for addr, kind := range map[string]dnsmessage.Type{"192.0.2.1": dnsmessage.TypeA, "2001:db8::1": dnsmessage.TypeAAAA} {
		asked := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.example."), Type: kind, Class: dnsmessage.ClassINET}}}
		f.Add(answer(testutil.Must(asked.Pack())(f), addr))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m dnsmessage.Message
		found, want := addresses(b), []netip.Addr(nil)
		if m.Unpack(b) != nil {
			return
		}
		for _, record := range m.Answers {
			switch body := record.Body.(type) {
			case *dnsmessage.AResource:
				want = append(want, netip.AddrFrom4(body.A))
			case *dnsmessage.AAAAResource:
				want = append(want, netip.AddrFrom16(body.AAAA))
			}
		}
		testutil.EqualSlices(t, found, want, "addresses")
	})
}
