package legacy

import (
	"testing"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

func TestLinkPackets(t *testing.T) {
	s := link.Stats{Opened: 3, Accepted: 4, Answered: 2, Ended: 1, DataSent: 10, DataReceived: 20}
	asked, answered := LinkPackets(s, true)
	if asked[client.PacketType_DIAL_REQ] != 3 || asked[client.PacketType_DATA] != 10 || asked[client.PacketType_CLOSE_REQ] != 1 ||
		answered[client.PacketType_DIAL_RSP] != 2 || answered[client.PacketType_DATA] != 20 || answered[client.PacketType_CLOSE_RSP] != 1 {
		t.Errorf("opener: %v, %v", asked, answered)
	}
	asked, answered = LinkPackets(s, false)
	testutil.Holds(t, asked[client.PacketType_DIAL_REQ] == 4 && asked[client.PacketType_DATA] == 20 &&
		answered[client.PacketType_DATA] == 10, "the other side: %v, %v", asked, answered)
}
