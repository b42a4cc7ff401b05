package tunnel_test

import (
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestOneLineHasNoControls(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"as it is: ünïcode":    "as it is: ünïcode",
		"a\r\nSet-Cookie: b":   "a  Set-Cookie: b",
		"\x00\t\x1b[2J\x7f":    "   [2J ",
		"what is \xff invalid": "what is \ufffd invalid",
	} {
		testutil.Equal(t, tunnel.OneLine(text), want, "%q", text)
	}
}
