package tunnel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// addresses and what looks like them.
var addresses = []string{
	"", ".", "1", "1.2.3", "1.2.3.4", "1.2.3.4.", "01.2.3.4", "256.1.1.1", "1.2.3.4.5", "1.2.3.4%eth0",
	"::", "::1", "fe80::1%eth0", "::ffff:1.2.3.4", "1::2::3", ":", "a:b", "[::1]", "::g",
	"a.example", "10.example", "node-1", "1.2.3.x", "bücher.example", "dead.beef", "fe80::1%",
}

func TestParseLooseIP(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "127.0.0.1.": "127.0.0.1", "127.0.0.1..": "127.0.0.1", "::1": "::1", "0": "0.0.0.0",
		"127.1": "127.0.0.1", "127.0.257": "127.0.1.1", "127.65537": "127.1.0.1", "2130706433": "127.0.0.1", "4294967295": "255.255.255.255",
		"0177.0.0.1": "127.0.0.1", "0x7f.1": "127.0.0.1", "0X7F000001": "127.0.0.1", "017700000001.": "127.0.0.1",
		"": "", ".": "", "..": "", "a": "", "a.1": "", "1.a": "", "1..1": "", "1.2.3.4.5": "", "256.1": "", "1.2.3.256": "", "4294967296": "",
		"08.1": "", "1.08": "", "1_0.1": "", "0x": "", "1.0x": "", "::1.": "", "1.example.": "",
	} {
		got, ok := tunnel.ParseLooseIP(host)
		testutil.Holds(t, ok == (want != "") && (!ok || got.String() == want), "ParseLooseIP(%q) = %v, %v; want %q", host, got, ok, want)
	}
}

func FuzzParseIP(f *testing.F) {
	for _, host := range append(addresses, "127.1", "0x7f.1", "2130706433", "08.1", "256.1", "1_0.1") {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got, ok := tunnel.ParseIP(host)
		want, err := netip.ParseAddr(host)
		testutil.Holds(t, got == want && ok == (err == nil), "ParseIP(%q) = %v, %v; netip has %v, %v", host, got, ok, want, err)
		if loose, also := tunnel.ParseLooseIP(host); ok && loose != got || also != loose.IsValid() {
			t.Errorf("ParseLooseIP(%q) = %v, %v; ParseIP has %v, %v", host, loose, also, got, ok)
		}
	})
}

// Every hop takes the address of every dial apart.
func TestAddressesAllocateNothing(t *testing.T) {
	testutil.Each(t, map[string]string{"name": "a.name.example:443", "IPv4": "10.0.0.1:443", "IPv6": "[2001:db8::1]:443"}, func(t *testing.T, address string) {
		testutil.MaxAllocs(t, 0, func() {
			host, _, err := tunnel.SplitAddress(address)
			testutil.NoError(t, err)
			tunnel.ParseLooseIP(host)
		})
	})
}

// Of dots at the end, one makes no difference.
func TestHostsAreComparedInOneSpelling(t *testing.T) {
	for host, want := range map[string]struct {
		spelled string
		local   bool
	}{
		"": {"", false}, ".": {"", false}, "A.": {"a", false}, "a..": {"a.", false}, "[::1]": {"[::1]", false},
		"LocalHost.": {"localhost", true}, "x.LOCALHOST": {"x.localhost", true}, "localhost..": {"localhost.", false},
		"xlocalhost": {"xlocalhost", false}, "localhost.x": {"localhost.x", false}, "localhost:1": {"localhost:1", false},
		"127.0.0.1": {"127.0.0.1", false},
	} {
		testutil.Equal(t, tunnel.CanonicalHost(host), want.spelled, "the spelling of %q", host)
		testutil.Equal(t, tunnel.IsLocalhost(host), want.local, "%q is localhost", host)
	}
}

func TestSplitAddress(t *testing.T) {
	for address, want := range map[string]string{
		"example.com:80": "example.com 80", "[::1]:443": "::1 443", "10.0.0.1:65535": "10.0.0.1 65535",
		"my_host.:1": "my_host. 1", "bücher.example:1": "bücher.example 1", "[fe80::1%eth0]:1": "fe80::1%eth0 1",
	} {
		host, port, err := tunnel.SplitAddress(address)
		testutil.NoError(t, err)
		testutil.Equal(t, fmt.Sprint(host, " ", port), want, "SplitAddress(%q)", address)
	}
	for _, address := range []string{
		"", "host", ":80", "host:", "host:0", "host:65536", "host:000080", "host:-1", "host:http", "::1:80", "ho st:80", "ho\x00st:80", "..:80",
		"user@host:80", "host/path:80", strings.Repeat("a", 254) + ":80", "host:+1", "h\xbdst:80",
		"[host:8090]:80", "[1:2]:80",
	} {
		_, _, err := tunnel.SplitAddress(address)
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailBadAddress, "SplitAddress(%q)", address)
	}
}
