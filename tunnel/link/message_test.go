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
