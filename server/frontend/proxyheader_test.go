package frontend

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pires/go-proxyproto"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

// behind sets load balancers at these addresses.
func behind(t testing.TB, networks ...string) setting {
	t.Helper()
	proxies := testutil.Must(admission.ParseNetworks(networks))(t)
	return func(c *Config) { c.Proxies = proxies }
}

// telling has the link's handler send the peer's address, as it is known here
// and as TLS knows it.
func telling(c *Config) {
	c.Link = func(_ context.Context, c *Conn) {
		if c.Begin() {
			_, _ = io.WriteString(c.Conn, c.RemoteAddr().String()+" "+c.Conn.RemoteAddr().String()+"\n")
		}
	}
}

// header is a PROXY protocol header, as a load balancer writes it.
func header(t testing.TB, version byte, from, to string, tlvs ...proxyproto.TLV) string {
	t.Helper()
	address := func(text string) net.Addr { return testutil.Must(net.ResolveTCPAddr("tcp", text))(t) }
	h := proxyproto.HeaderProxyFromAddrs(version, address(from), address(to))
	testutil.NoError(t, h.SetTLVs(tlvs))
	return string(testutil.Must(h.Format())(t))
}

// signature begins a header of version 2.
var signature = string(proxyproto.SIGV2)

// prefixed sends head together with the first write.
type prefixed struct {
	net.Conn
	head string
}

func (p *prefixed) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(append([]byte(p.head), b...))
	n = max(0, n-len(p.head))
	p.head = ""
	return n, err
}

// The address in a header is the peer's from then on, whether TLS begins in the
// same segment or later.
func TestProxyHeadersNameThePeer(t *testing.T) {
	r := start(t, "tcp", true, telling, behind(t, "127.0.0.0/8"))
	big := proxyproto.TLV{Type: proxyproto.PP2_TYPE_MIN_CUSTOM, Value: bytes.Repeat([]byte{7}, 3<<10)}
	for name, test := range map[string]struct{ header, want string }{
		"version 1":             {header(t, 1, "192.0.2.7:4711", "203.0.113.1:8091"), "192.0.2.7:4711"},
		"version 1, IPv6":       {header(t, 1, "[2001:db8::7]:4711", "[2001:db8::1]:8091"), "[2001:db8::7]:4711"},
		"version 2":             {header(t, 2, "192.0.2.7:4711", "203.0.113.1:8091"), "192.0.2.7:4711"},
		"version 2, IPv6":       {header(t, 2, "[2001:db8::7]:4711", "[2001:db8::1]:8091"), "[2001:db8::7]:4711"},
		"more than fits ahead":  {header(t, 2, "192.0.2.7:4711", "203.0.113.1:8091", big), "192.0.2.7:4711"},
		"both families":         {header(t, 2, "192.0.2.7:4711", "[2001:db8::1]:8091"), "192.0.2.7:4711"},
		"its own, version 2":    {signature + "\x20\x00\x00\x00", ""},
		"its own, with address": {strings.Replace(header(t, 2, "192.0.2.7:4711", "203.0.113.1:8091"), "\x21", "\x20", 1), ""},
		"its own, version 1":    {"PROXY UNKNOWN\r\n", ""},
		"unknown, with address": {"PROXY UNKNOWN 192.0.2.7 203.0.113.1 4711 8091\r\n", ""},
	} {
		for _, together := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				raw := r.raw()
				var conn net.Conn = &prefixed{raw, test.header}
				if !together {
					send(t, raw, test.header)
					conn = raw
				}
				want := test.want
				if want == "" {
					want = raw.LocalAddr().String()
				}
				c := tls.Client(conn, r.secure("test-link/1"))
				defer c.Close()
				expect(t, c, want+" "+want+"\n")
			})
		}
	}
}

// What comes in single bytes is read all the same, and no byte beyond the header.
func TestProxyHeadersInPieces(t *testing.T) {
	const rest = "then TLS"
	for _, version := range []byte{1, 2} {
		for _, from := range []string{"192.0.2.7:4711", "[2001:db8::7]:4711"} {
			pieces := iotest.OneByteReader(strings.NewReader(header(t, version, from, from) + rest))
			got, ahead, err := readProxyHeader(pieces)
			testutil.Holds(t, err == nil && got.String() == from && len(ahead) == 0,
				"version %d of %s: %v, %q, %v", version, from, got, ahead, err)
		}
	}
	longest := "PROXY UNKNOWN " + strings.Repeat("f", maxProxyLine-16) + "\r\n"
	for line, ok := range map[string]bool{longest: true, "PROXY UNKNOWN f" + longest[14:]: false} {
		_, ahead, err := readProxyHeader(iotest.OneByteReader(strings.NewReader(line + rest)))
		testutil.Holds(t, (err == nil) == ok && (!ok || len(ahead) == 0), "%d bytes: %q, %v", len(line), ahead, err)
	}
}

// A trusted address has to send a header that can be read, and is told nothing.
func TestProxyHeadersAreRequired(t *testing.T) {
	testutil.Each(t, map[string]string{
		"TLS":               "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"nonsense":          "hello, is anybody there?\r\n",
		"nearly version 1":  "PROXYTCP4 192.0.2.7 203.0.113.1 4711 8091\r\n",
		"a name":            "PROXY TCP4 a.example 203.0.113.1 4711 8091\r\n",
		"the wrong family":  "PROXY TCP6 192.0.2.7 203.0.113.1 4711 8091\r\n",
		"a port too high":   "PROXY TCP4 192.0.2.7 203.0.113.1 65536 8091\r\n",
		"no end":            "PROXY TCP4 " + strings.Repeat("1", 200),
		"nearly version 2":  signature[:11] + "\x0b\x21\x11\x00\x0c",
		"version 3":         signature + "\x31\x11\x00\x0c",
		"of UDP":            strings.Replace(header(t, 2, "192.0.2.7:4711", "203.0.113.1:8091"), "\x21\x11", "\x21\x12", 1),
		"of a unix socket":  signature + "\x21\x31\x00\xd8" + strings.Repeat("\x00", 216),
		"too short":         signature + "\x21\x11\x00\x04\x00\x00\x00\x00",
		"longer than ever":  signature + "\x21\x11\xff\xff" + strings.Repeat("\x00", 12),
		"no known protocol": signature + "\x21\x00\x00\x00",
	}, func(t *testing.T, sent string) {
		log, lines := logtest.NewNullLogger()
		r := start(t, "tcp", true, telling, behind(t, "127.0.0.1"), func(c *Config) { c.Log, c.handshakeTimeout = log, time.Hour })
		c := r.raw()
		_, _ = io.WriteString(c, sent)
		closed(t, c)
		testutil.Eventually(t, "it is counted", func() bool { return r.count("proxy") == 1 })
		line := lines.LastEntry()
		testutil.Holds(t, line != nil && strings.Contains(line.Message, "PROXY protocol header"), "the log says %v", line)
	})
}

// A load balancer that looks whether the port is open is no news.
func TestBalancersThatLeave(t *testing.T) {
	for _, sent := range []string{"", "P", "PROXY TCP4 192.0.2.7 20", signature[:3]} {
		r := start(t, "tcp", true, telling, behind(t, "127.0.0.1"), func(c *Config) { c.handshakeTimeout = time.Hour })
		c := r.raw()
		_, _ = io.WriteString(c, sent)
		_ = c.(*net.TCPConn).CloseWrite()
		closed(t, c)
		testutil.Eventually(t, "it is counted", func() bool { return r.count("closed") == 1 })
	}
}

// Nor is one that ends its probe with a reset, as HAProxy does, also behind a header. That is no
// failed handshake, of which the log would have a line for each probe.
func TestBalancersThatReset(t *testing.T) {
	trusted := []setting{behind(t, "127.0.0.1")}
	for name, probe := range map[string]struct {
		settings []setting
		sent     string
	}{
		"in plain": {nil, ""}, "before a header": {trusted, ""}, "in a header": {trusted, signature[:3]},
		"behind version 1": {trusted, "PROXY UNKNOWN\r\n"}, "behind version 2": {trusted, signature + "\x20\x00\x00\x00"},
		"behind one of a client": {trusted, header(t, 2, "192.0.2.7:4711", "203.0.113.1:8091")},
	} {
		t.Run(name, func(t *testing.T) {
			log, lines := logtest.NewNullLogger()
			r := start(t, "tcp", true, append(probe.settings, telling, func(c *Config) { c.Log = log })...)
			c := r.raw()
			_, _ = io.WriteString(c, probe.sent)
			testutil.Eventually(t, "it is accepted", func() bool { return r.conns.Load() == 1 })
			testutil.NoError(t, c.(*net.TCPConn).SetLinger(0))
			_ = c.Close()
			testutil.Eventually(t, "it is over", func() bool { return r.conns.Load() == 0 })
			if all := lines.AllEntries(); r.count("closed") != 1 || len(all) != 0 {
				t.Errorf("%d are counted as closed, and %d lines are logged", r.count("closed"), len(all))
			}
		})
	}
}

// Half a header is waited for no longer than a handshake.
func TestSlowProxyHeadersAreCut(t *testing.T) {
	for _, sent := range []string{"", "PRO", "PROXY TCP4 192.0.2.7 203.0.113.1", signature, header(t, 2, "192.0.2.7:4711", "203.0.113.1:8091")[:20]} {
		// Nobody shakes hands here, so that the bound can be as short as one likes.
		r := start(t, "tcp", true, telling, behind(t, "127.0.0.1"), func(c *Config) { c.handshakeTimeout = 50 * time.Millisecond })
		c := r.raw()
		_, _ = io.WriteString(c, sent)
		closed(t, c)
		testutil.Eventually(t, "it is counted", func() bool { return r.count("timeout") == 1 })
	}
}

// Who is not trusted is known by its own address: without a header it is served,
// and with one it is refused.
func TestProxyHeadersFromElsewhere(t *testing.T) {
	log, lines := logtest.NewNullLogger()
	r := start(t, "tcp", true, telling, behind(t, "192.0.2.0/24"), func(c *Config) { c.Log = log })
	raw := r.raw()
	c := tls.Client(raw, r.secure("test-link/1"))
	expect(t, c, raw.LocalAddr().String()+" "+raw.LocalAddr().String()+"\n")
	for i, version := range []byte{1, 2} {
		head := header(t, version, "198.51.100.1:4711", "203.0.113.1:8091")
		testutil.Fails(t, tls.Client(&prefixed{r.raw(), head}, r.secure("test-link/1")).Handshake(), "a header of version %d was accepted", version)
		testutil.Eventually(t, "it is counted", func() bool { return r.count("tls") == i+1 })
		text, _ := lines.LastEntry().String()
		testutil.Holds(t, strings.Contains(text, "not among those trusted"), "the log says %s", text)
	}
}

func TestProxyHeadersNeedTLS(t *testing.T) {
	_, err := New(Config{Log: logging.Silent(), Link: func(context.Context, *Conn) {}, Proxies: admission.Networks{{}}})
	testutil.Fails(t, err, "a listener without TLS would never read them")
}

// All connections come through one load balancer, and still those of one address
// lose their places to their like, not to the only one of another.
func TestConnectionsBehindABalancerAreBoundedByTheirOwnAddress(t *testing.T) {
	r := start(t, "tcp", true, telling, behind(t, "127.0.0.1"), room(8*tlsWeight), func(c *Config) { c.handshakeTimeout = time.Hour })
	honest := r.raw()
	_, _ = io.WriteString(honest, header(t, 2, "198.51.100.1:4711", "203.0.113.1:8091"))
	r.known()
	for i := range 40 {
		c := r.raw()
		_, _ = io.WriteString(c, header(t, byte(1+i%2), "192.0.2.7:4711", "203.0.113.1:8091")+"\x16")
		r.known()
	}
	testutil.Eventually(t, "most were evicted", func() bool { return r.count("evicted") >= 30 })
	c := tls.Client(honest, r.secure("test-link/1"))
	expect(t, c, "198.51.100.1:4711 198.51.100.1:4711\n")
}

// known waits until the header of the first connection is being read, and all others have been.
func (r *rig) known() {
	r.t.Helper()
	testutil.Eventually(r.t, "all headers are being read, and all but one have been", func() bool {
		n, bytes := r.cfg.PreAuth.Held()
		return n > 0 && bytes >= proxyWeight+int64(n-1)*tlsWeight
	})
}

// FuzzProxyHeader: whatever comes, nothing beyond the header is lost.
func FuzzProxyHeader(f *testing.F) {
	for _, version := range []byte{1, 2} {
		f.Add([]byte(header(f, version, "192.0.2.7:4711", "203.0.113.1:8091")), []byte("\x16\x03\x01"))
		f.Add([]byte(header(f, version, "[2001:db8::7]:4711", "[2001:db8::1]:8091")), []byte{})
	}
	f.Add([]byte("PROXY UNKNOWN\r\n"), []byte("x"))
	f.Add([]byte(signature+"\x20\x00\x00\x00"), []byte("x"))
	f.Add([]byte("GET / HTTP/1.1"), []byte("\r\n\r\n"))
	f.Fuzz(func(t *testing.T, head, after []byte) {
		all := append(bytes.Clone(head), after...)
		r := bytes.NewReader(all)
		from, rest, err := readProxyHeader(r)
		read := len(all) - r.Len()
		testutil.Requires(t, read <= maxProxyHeader+proxyReadAhead, "%d bytes were read", read)
		if err != nil {
			return
		}
		testutil.Requires(t, bytes.HasSuffix(all[:len(all)-r.Len()], rest),
			"%q is put back, which was not what came last", rest)
		testutil.Requires(t, from == nil || from.AddrPort().IsValid(), "an address that is none: %v", from)
		length := len(all) - r.Len() - len(rest)
		again, none, err := readProxyHeader(bytes.NewReader(all[:length]))
		testutil.Requires(t, err == nil && len(none) == 0 && again.String() == from.String(),
			"the header alone is %v, %q, %v", again, none, err)
	})
}
