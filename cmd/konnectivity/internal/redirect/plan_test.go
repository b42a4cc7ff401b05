package redirect

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"10.128.0.0/14": "", "192.0.2.7/32": "", "fd01::/48": "", "2001:db8::7/128": "", "0.0.0.0/0": "", "::/0": "", "169.0.0.0/8": "",
		"":                     "want a network such as",
		"pods":                 "want a network such as",
		"10.128.0.0":           "for this address alone, write 10.128.0.0/32",
		"fd01::1":              "for this address alone, write fd01::1/128",
		"10.128.0.0/33":        "want a network such as",
		"fd01::1%eth0/64":      "want a network such as",
		"fe80::1%eth0":         "want a network such as",
		"10.128.0.1/14":        "did you mean 10.128.0.0/14?",
		"fd01::1/48":           "did you mean fd01::/48?",
		"127.0.0.0/8":          "loopback",
		"127.0.0.1/32":         "loopback",
		"::1/128":              "loopback",
		"169.254.169.254/32":   "link-local",
		"fe80::/64":            "link-local",
		"224.0.0.0/24":         "multicast",
		"ff02::/16":            "multicast",
		"::ffff:10.0.0.0/104":  "write it as IPv4",
		"\x1b[2J10.128.0.0/14": "want a network such as",
	} {
		got, err := Networks([]string{"192.0.2.0/24", text})
		var usage *cli.UsageError
		switch {
		case want == "" && (err != nil || !slices.Equal(got, prefixes("192.0.2.0/24", text))):
			t.Errorf("%q: %v, %v", text, got, err)
		case want != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), want) || strings.ContainsRune(err.Error(), 0x1b)):
			t.Errorf("%q: %v, %v, want %q", text, got, err, want)
		}
	}
	testutil.ErrorSays(t, testutil.Err(Networks(slices.Repeat([]string{"10.0.0.0/8"}, maxNetworks+1))), "64 is the most",
		"too many")
}

// FuzzNetworks checks that accepted networks have no bits beyond their mask and can be
// redirected.
func FuzzNetworks(f *testing.F) {
	for _, seed := range []string{"10.128.0.0/14", "fd01::/48", "::ffff:10.0.0.0/104", "fe80::%1/64", "1/1", "/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Networks([]string{text})
		if err != nil {
			return
		}
		n := got[0]
		testutil.Holds(t, n == n.Masked() && !n.Addr().Is4In6() && n.Addr().Zone() == "" &&
			(n.Bits() <= 8 || !n.Addr().IsLoopback() && !n.Addr().IsMulticast()), "%q is accepted as %v", text, n)
	})
}

func TestNameservers(t *testing.T) {
	file := "# nameserver 192.0.2.9\n; nameserver 192.0.2.8\nnameserver\nnameserver x\nsearch nameserver 192.0.2.7\n" +
		"nameserver 10.96.0.10\n\tnameserver\tfd00::a # of the cluster\nnameserver fe80::1%eth0\noptions ndots:5\nnameserver ::ffff:10.96.0.11"
	testutil.Equal(t, join(Nameservers([]byte(file))), "10.96.0.10, fd00::a, fe80::1, 10.96.0.11", "nameservers")
	many := Nameservers(bytes.Repeat([]byte("nameserver 10.96.0.10\n"), 1e4))
	testutil.Equal(t, len(many), maxNetworks, "of ten thousand")
}

// FuzzNameservers: every nameserver can be compared with an address in a header.
func FuzzNameservers(f *testing.F) {
	f.Add("nameserver 10.96.0.10\nnameserver fe80::1%eth0\n")
	f.Fuzz(func(t *testing.T, text string) {
		servers := Nameservers([]byte(text))
		testutil.AtMost(t, len(servers), maxNetworks, "nameservers")
		for _, s := range servers {
			testutil.Holds(t, s.IsValid() && s.Zone() == "" && !s.Is4In6(), "%v", s)
		}
	})
}

func TestPlanString(t *testing.T) {
	p := &Plan{To: prefixes("10.0.0.0/8", "fd00::/8"), UID: 7, Port: 8096}
	testutil.Equal(t, p.String(),
		"TCP connections to 10.0.0.0/8, fd00::/8 now go to port 8096 of loopback; not those of user 7, to link-local addresses, and to this machine itself", "the plan")
	p.DNS, p.Except = []netip.Addr{netip.MustParseAddr("10.96.0.10")}, prefixes("10.1.0.0/16")
	testutil.Contains(t, p.String(),
		"not those of user 7, to DNS at 10.96.0.10, to 10.1.0.0/16, to link-local addresses, and to this machine itself", "the plan")
}
