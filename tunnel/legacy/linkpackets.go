package legacy

import (
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/tunnel/link"
)

// LinkPackets returns the statistics of links as packets of the old protocol: those sent by the
// opener of the streams, and those sent by the other side. A frame of data is a packet. A
// stream that was established and has ended counts as one request to close and one answer.
func LinkPackets(s link.Stats, opener bool) (asked, answered map[client.PacketType]uint64) {
	there, back, opened := s.DataReceived, s.DataSent, s.Accepted
	if opener {
		there, back, opened = back, there, s.Opened
	}
	asked = map[client.PacketType]uint64{client.PacketType_DIAL_REQ: opened, client.PacketType_DATA: there, client.PacketType_CLOSE_REQ: s.Ended}
	answered = map[client.PacketType]uint64{client.PacketType_DIAL_RSP: s.Answered, client.PacketType_DATA: back, client.PacketType_CLOSE_RSP: s.Ended}
	return asked, answered
}
