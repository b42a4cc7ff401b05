package legacy

import (
	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// packet is a received Packet. The payload of DATA is held by reference and
// belongs to whoever takes it; everything else is as in konnectivity-client.
type packet struct {
	kind client.PacketType
	id   int64          // the connection of DATA
	data []tunnel.Chunk // the payload of DATA; the slice is used again
	rest *client.Packet // any other packet
	size int            // of the message
}

// dataMessage is a DATA packet to send.
type dataMessage struct {
	id    int64
	chunk tunnel.Chunk
	size  int  // of the chunk, which may be released before this is asked
	taken bool // the codec has released the chunk or will
}

func dialRequest(random int64, network, address string) *client.Packet {
	return &client.Packet{
		Type: client.PacketType_DIAL_REQ,
		Payload: &client.Packet_DialRequest{DialRequest: &client.DialRequest{
			Protocol: network, Address: address, Random: random,
		}},
	}
}

func dialResponse(random, id int64, text string) *client.Packet {
	return &client.Packet{
		Type: client.PacketType_DIAL_RSP,
		Payload: &client.Packet_DialResponse{DialResponse: &client.DialResponse{
			Random: random, ConnectID: id, Error: text,
		}},
	}
}

func dialClose(random int64) *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_DIAL_CLS,
		Payload: &client.Packet_CloseDial{CloseDial: &client.CloseDial{Random: random}},
	}
}

func closeRequest(id int64) *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_CLOSE_REQ,
		Payload: &client.Packet_CloseRequest{CloseRequest: &client.CloseRequest{ConnectID: id}},
	}
}

func closeResponse(id int64, text string) *client.Packet {
	return &client.Packet{
		Type: client.PacketType_CLOSE_RSP,
		Payload: &client.Packet_CloseResponse{CloseResponse: &client.CloseResponse{
			ConnectID: id, Error: text,
		}},
	}
}

func drain() *client.Packet {
	return &client.Packet{
		Type:    client.PacketType_DRAIN,
		Payload: &client.Packet_Drain{Drain: &client.Drain{}},
	}
}
