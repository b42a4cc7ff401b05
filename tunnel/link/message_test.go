package link

import (
	"strings"
	"testing"

	"konnectivity/tunnel"
)

// An id is taken under the rule of every other hop, or it would be lost at one
// of them.
func TestIDsFollowOneRule(t *testing.T) {
	for id, want := range map[string]string{"4bf92f3577b34da6": "4bf92f3577b34da6", "Req-1_a.b": "Req-1_a.b", "a/b": "", "a b": "", "<a>": "", strings.Repeat("a", tunnel.MaxID+1): ""} {
		m, err := decodeOpen(openMsg{network: "tcp", address: "a:1", id: id}.encode())
		if err != nil || m.id != want {
			t.Errorf("%q became %q, %v", id, m.id, err)
		}
	}
}

// A group is taken whole, or not at all.
func TestGroupOfHello(t *testing.T) {
	for group, want := range map[string]string{
		"":                                "",
		"0123456789abcdef":                "0123456789abcdef",
		strings.Repeat("g", GroupSize-1):  "",
		strings.Repeat("g", GroupSize+1):  "",
		strings.Repeat("\x00", GroupSize): strings.Repeat("\x00", GroupSize),
	} {
		payload, err := Hello{Role: RoleAgent, Group: group}.encode()
		if err != nil {
			t.Fatal(err)
		}
		var got Hello
		if err := got.decode(payload); err != nil || got.Group != want {
			t.Errorf("%q became %q, %v", group, got.Group, err)
		}
	}
}
