package legacy

import (
	"google.golang.org/protobuf/encoding/protowire"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// Fields of ours in a DialRequest, for which client.proto has no room: the connection's id
// (tunnel.Flow), a string, and the id of the dial's span, fixed64. They are sent only to
// peers that say keyDuplex; all others skip fields that they do not know, as protobuf has it.
const (
	fieldID   = 1000
	fieldSpan = 1001
)

// setDialID puts the ids of a connection and a span into its DIAL_REQ; "" and 0 do nothing.
func setDialID(request *client.Packet, id string, span uint64) {
	var b []byte
	if id != "" {
		b = protowire.AppendString(protowire.AppendTag(b, fieldID, protowire.BytesType), id)
	}
	if span != 0 {
		b = protowire.AppendFixed64(protowire.AppendTag(b, fieldSpan, protowire.Fixed64Type), span)
	}
	request.GetDialRequest().ProtoReflect().SetUnknown(b)
}

// dialID are the ids in a DIAL_REQ; "" where there is none that is fit for a log.
func dialID(request *client.DialRequest) (id string, span uint64) {
	rest := request.ProtoReflect().GetUnknown()
	for len(rest) > 0 {
		number, kind, size := protowire.ConsumeField(rest)
		if size < 0 {
			return id, span
		}
		switch value := rest[protowire.SizeTag(number):]; { // Unmarshal makes tags as short as can be
		case number == fieldID && kind == protowire.BytesType:
			text, _ := protowire.ConsumeString(value)
			id = tunnel.CleanID(text)
		case number == fieldSpan && kind == protowire.Fixed64Type:
			span, _ = protowire.ConsumeFixed64(value)
		}
		rest = rest[size:]
	}
	return id, span
}
