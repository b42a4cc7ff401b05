package tunnel_test

import (
	"net/netip"
	"testing"

	"konnectivity/internal/allocs"
	"konnectivity/tunnel"
)

func TestParseIP(t *testing.T) {
	for _, host := range addresses {
		got, ok := tunnel.ParseIP(host)
		want, err := netip.ParseAddr(host)
		if got != want || ok != (err == nil) {
			t.Errorf("ParseIP(%q) = %v, %v; netip has %v, %v", host, got, ok, want, err)
		}
	}
}

// addresses and what looks like them.
var addresses = []string{
	"", ".", "1", "1.2.3", "1.2.3.4", "1.2.3.4.", "01.2.3.4", "256.1.1.1", "1.2.3.4.5", "1.2.3.4%eth0",
	"::", "::1", "fe80::1%eth0", "::ffff:1.2.3.4", "1::2::3", ":", "a:b", "[::1]", "::g",
	"a.example", "10.example", "node-1", "1.2.3.x", "bücher.example", "dead.beef", "fe80::1%",
}

func FuzzParseIP(f *testing.F) {
	for _, host := range addresses {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got, ok := tunnel.ParseIP(host)
		if want, err := netip.ParseAddr(host); got != want || ok != (err == nil) {
			t.Errorf("ParseIP(%q) = %v, %v; netip has %v, %v", host, got, ok, want, err)
		}
	})
}

// Every hop takes the address of every dial apart.
func TestAddressesAllocateNothing(t *testing.T) {
	for name, address := range map[string]string{"name": "a.name.example:443", "IPv4": "10.0.0.1:443", "IPv6": "[2001:db8::1]:443"} {
		t.Run(name, func(t *testing.T) {
			allocs.AtMost(t, 0, func() {
				host, _, err := tunnel.SplitAddress(address)
				if err != nil {
					t.Fatal(err)
				}
				tunnel.ParseIP(host)
			})
		})
	}
}
