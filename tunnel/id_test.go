package tunnel_test

import (
	"fmt"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestTraceParent(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for header, want := range map[string]string{
		"00-" + trace + "-b7ad6b7169203331-01":                   trace,
		"42-" + trace + "-b7ad6b7169203331-01-more":              trace,
		"00-" + trace + "-b7ad6b7169203331-01-more":              "",
		"42-" + trace + "-b7ad6b7169203331-01more":               "",
		"ff-" + trace + "-b7ad6b7169203331-01":                   "",
		"00-" + trace + "-0000000000000000-01":                   "",
		"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01": "",
		"00-" + strings.ToUpper(trace) + "-b7ad6b7169203331-01":  "",
		"00-" + trace + "-b7ad6b716920333\n-01":                  "",
		"00_" + trace + "-b7ad6b7169203331-01":                   "",
		"00-" + trace + "_b7ad6b7169203331-01":                   "",
		"00-" + trace + "-b7ad6b716920333g-01":                   "",
		"00-" + trace:                                            "",
		"":                                                       "",
	} {
		got, span := tunnel.TraceParent(header)
		testutil.Equal(t, got, want, "%q", header)
		testutil.Equal(t, span == 0xb7ad6b7169203331, want != "", "%q tells the span", header)
	}
}

// A header of ours says what it was made of, by whatever id the connection has.
func TestTraceID(t *testing.T) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	for id, want := range map[string]string{trace: trace, "0af7651916cd43dd": "00000000000000000af7651916cd43dd", "my-id": tunnel.TraceID("my-id")} {
		got, span := tunnel.TraceParent(tunnel.FormatTraceParent(id, 7))
		testutil.Equal(t, fmt.Sprint(got, " ", span), want+" 7", "%s", id)
	}
	testutil.Equal(t, tunnel.TraceID("my-id") == tunnel.TraceID("another"), false, "two ids are one trace")
}

func FuzzTraceParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Fuzz(func(t *testing.T, header string) {
		id, span := tunnel.TraceParent(header)
		testutil.Holds(t, (id == "") == (span == 0) && (id == "" || len(id) == 32 && tunnel.CleanID(id) == id), "%q: %q", header, id)
	})
}

func TestCleanID(t *testing.T) {
	for id, want := range map[string]string{
		tunnel.NewID()[:4] + "-_.Z9":        "=",
		strings.Repeat("a", tunnel.MaxID):   "=",
		strings.Repeat("a", tunnel.MaxID+1): "",
		"a b":                               "",
		"a\r\nEvil: 1":                      "",
		"ä":                                 "",
		"":                                  "",
	} {
		if want == "=" {
			want = id
		}
		testutil.Equal(t, tunnel.CleanID(id), want, "%q", id)
	}
}
