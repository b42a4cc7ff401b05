package legacy

import (
	"google.golang.org/protobuf/encoding/protowire"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// fieldID is ours: the connection's id (tunnel.Flow) in a DialRequest, a
// string. client.proto has no room for it. It is sent only to peers that say
// keyDuplex; all others skip fields that they do not know, as protobuf has it.
const fieldID = 1000

// setDialID puts the id of a connection into its DIAL_REQ; "" does nothing.
func setDialID(request *client.Packet, id string) {
	if id == "" {
		return
	}
	b := protowire.AppendTag(nil, fieldID, protowire.BytesType)
	request.GetDialRequest().ProtoReflect().SetUnknown(protowire.AppendString(b, id))
}

// dialID is the id in a DIAL_REQ; "" where there is none that is fit for a log.
func dialID(request *client.DialRequest) string {
	rest := request.ProtoReflect().GetUnknown()
	for len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return ""
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return ""
		}
		if number == fieldID && kind == protowire.BytesType {
			id, _ := protowire.ConsumeString(rest[n:])
			return tunnel.CleanID(id)
		}
		rest = rest[n+size:]
	}
	return ""
}
