package tunnel_test

import (
	"fmt"
	"testing"

	"konnectivity/tunnel"
)

func TestLossesHaveNames(t *testing.T) {
	labels := map[string]bool{}
	for c := range tunnel.AllLossCauses() {
		err := fmt.Errorf("read: %w", tunnel.Lost(c))
		if tunnel.LossOf(err) != c || tunnel.CodeOf(err) != tunnel.CodeLost {
			t.Errorf("%v is found as %v with the code %v", c, tunnel.LossOf(err), tunnel.CodeOf(err))
		}
		if c.Label() == "" || c.String() == "" || labels[c.Label()] {
			t.Errorf("cause %d is called %q and %q", c, c.Label(), c)
		}
		labels[c.Label()] = true
	}
	if len(labels) != tunnel.LossCauses {
		t.Errorf("%d causes, want %d", len(labels), tunnel.LossCauses)
	}
	if tunnel.Lost(200) != tunnel.Lost(tunnel.LossUnknown) {
		t.Error("a number without a meaning has an error of its own")
	}
	if got := tunnel.Lost(tunnel.LossSilent).Error(); got != "connection reset: the tunnel that carried it was lost: its peer fell silent" {
		t.Error(got)
	}
}
