package race

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

func TestAlternate(t *testing.T) {
	parse := func(texts string) (addrs []netip.Addr) {
		for _, text := range strings.Fields(texts) {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		return addrs
	}
	for in, want := range map[string]string{
		"":                                   "",
		"1.0.0.1 1.0.0.2":                    "1.0.0.1 1.0.0.2",
		"2001:db8::1 2001:db8::2 1.0.0.1":    "2001:db8::1 1.0.0.1 2001:db8::2",
		"1.0.0.1 1.0.0.2 2001:db8::1":        "1.0.0.1 2001:db8::1 1.0.0.2",
		"1.0.0.1 ::ffff:1.0.0.1 1.0.0.1":     "1.0.0.1",
		"::ffff:1.0.0.1 2001:db8::1 1.0.0.2": "1.0.0.1 2001:db8::1 1.0.0.2",
	} {
		testutil.Equal(t, fmt.Sprint(Alternate(parse(in))), fmt.Sprint(parse(want)), "%q", in)
	}
}
