package nameserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/testutil"
)

// serveA answers A on a UDP port of loopback until the test ends, and never AAAA.
func serveA(t *testing.T) (at string) {
	conn := testutil.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		for b := make([]byte, 512); ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if reply := answer(b[:n], "127.0.0.9"); reply != nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// answer is a reply to a question for A; nil: to any other.
func answer(asked []byte, addr string) []byte {
	var m dnsmessage.Message
	if m.Unpack(asked) != nil || m.Questions[0].Type != dnsmessage.TypeA {
		return nil
	}
	q := m.Questions[0]
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	reply.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: netip.MustParseAddr(addr).As4()}}}
	packed, _ := reply.Pack()
	return packed
}

// A server that never answers AAAA costs a moment. Go's resolver alone asks two times for 5 s.
func TestAKindThatIsNeverAnswered(t *testing.T) {
	t.Parallel()
	at := serveA(t)
	r := &net.Resolver{PreferGo: true, Dial: Patience(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	})}
	began := time.Now()
	found, err := r.LookupNetIP(t.Context(), "ip", "never6.example.com.")
	testutil.Holds(t, err == nil && len(found) == 1 && found[0].Unmap().String() == "127.0.0.9", "found %v, %v", found, err)
	testutil.AtMost(t, time.Since(began), 5*time.Second, "it took")
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
	_, err := p.Read(make([]byte, 512))
	testutil.ErrorIs(t, err, os.ErrDeadlineExceeded, "a question that is not answered")
	return time.Since(began)
}

// Once addresses of one kind came, and can be reached, a question for the other has otherKind. It
// has as long when it is asked again.
func TestHowLongTheOtherKindMayTake(t *testing.T) {
	for name, c := range map[string]struct {
		routed  bool
		replied string // of a name
		id      uint16
		want    time.Duration
	}{
		"its addresses came":            {true, "a.test.", 1, otherKind},
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

func TestFiguresAreDocumented(t *testing.T) {
	testutil.Says(t, "../../docs/operations.md", "(two questions of %v ms;", int64(otherKind/time.Millisecond))
}
