package diagnose

import (
	"net/netip"
	"testing"
	"time"

	"konnectivity/adapters/uplink"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// Without a route to one family, a server that is reached by the other one is
// reached.
func TestUnroutableFamilyIsWarning(t *testing.T) {
	l := testutil.Listen(t)
	source := testutil.Must(tlsreload.New(tlsreload.Files{}, tlsreload.Options{Name: "test", Log: logging.Silent()}))(t)
	way := testutil.Must(uplink.New(uplink.Options{Address: l.Addr().String(), TLS: source, Log: logging.Silent()}))(t)
	defer way.Close()
	here := netip.MustParseAddrPort(l.Addr().String())
	nowhere := netip.MustParseAddrPort("224.0.0.1:8090") // Linux has no route there for TCP, ever
	for _, c := range []struct {
		addresses []netip.AddrPort
		want      []string
	}{
		{[]netip.AddrPort{nowhere, here}, []string{Warning, OK}},
		{[]netip.AddrPort{here, nowhere}, []string{OK, Warning}},
		{[]netip.AddrPort{nowhere}, []string{Failed}},
	} {
		checker := &pathChecker{opts: &Subject{Timeout: time.Minute}, now: time.Now}
		reached := checker.reachServer(t.Context(), way, c.addresses)
		testutil.Requires(t, reached.IsValid() == (len(c.addresses) > 1) && len(checker.findings) == len(c.want),
			"%v: %v, %+v", c.addresses, reached, checker.findings)
		for i, f := range checker.findings {
			if f.Result != c.want[i] || f.Result != OK && f.Hint == "" {
				t.Errorf("%v: %+v, want %s", c.addresses, f, c.want[i])
			}
		}
	}
}
