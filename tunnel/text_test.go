package tunnel_test

import (
	"testing"

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
		if got := tunnel.OneLine(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
