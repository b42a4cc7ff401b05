package legacy

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// overTheWire is a packet as it arrives.
func overTheWire(t testing.TB, p *client.Packet) *client.DialRequest {
	t.Helper()
	b := testutil.Must(proto.Marshal(p))(t)
	out := &client.Packet{}
	testutil.NoError(t, proto.Unmarshal(b, out))
	return out.GetDialRequest()
}

func TestDialID(t *testing.T) {
	for id, want := range map[string]string{
		"0af7651916cd43dd8448eb211c80319c": "0af7651916cd43dd8448eb211c80319c",
		"":                                 "", "evil\nline": "", strings.Repeat("x", tunnel.MaxID+1): "",
	} {
		for _, span := range []uint64{0, 1 << 63} {
			p := dialRequest(7, "tcp", "a:1")
			setDialID(p, id, span)
			got := overTheWire(t, p)
			if has, parent := dialID(got); has != want || parent != span || got.GetAddress() != "a:1" || got.GetRandom() != 7 {
				t.Errorf("%q, %x arrives as %q, %x in %v", id, span, has, parent, got)
			}
		}
	}
}

// Numbers in protobuf, such as tags and lengths, may be longer than they have to be.
func TestDialIDOfLongNumbers(t *testing.T) {
	long := func(number protowire.Number, kind protowire.Type) []byte {
		tag := protowire.AppendTag(nil, number, kind)
		tag[len(tag)-1] |= 0x80
		return append(tag, 0)
	}
	b := append(long(fieldID, protowire.BytesType), 0x87, 0)
	b = append(b, "trace-1"...)
	b = append(b, long(1002, protowire.BytesType)...)
	b = protowire.AppendString(b, "another field")
	b = protowire.AppendFixed64(append(b, long(fieldSpan, protowire.Fixed64Type)...), 7)
	p := dialRequest(1, "tcp", "a:1")
	p.GetDialRequest().ProtoReflect().SetUnknown(b)
	id, span := dialID(overTheWire(t, p))
	testutil.Equal(t, id, "trace-1", "the id")
	testutil.Equal(t, span, 7, "the span")
}

// Our agent learns the id; an old one gets the packet that it always got.
func TestDialCarriesID(t *testing.T) {
	for name, old := range map[string]bool{"ours": false, "old": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Limits{})
			var seen atomic.Value
			p, s := r.agentWith(old, AgentConfig{
				Source: tunnel.Addr{Text: "10.0.0.9:8091"},
				Forwarder: &tunnel.Forwarder{
					Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
						seen.Store(fmt.Sprint(f.ID, " ", f.Span.Parent))
						near, far := net.Pipe()
						far.Close()
						return tunnel.Wrap(near), nil
					}),
				},
			})
			c := testutil.Must(p.Dial(t.Context(), &tunnel.Flow{Request: tunnel.Request{ID: "trace-1", Network: "tcp", Address: "a:1"}, Span: tunnel.Span{ID: 7}}))(t)
			_ = c.Reset(nil)
			if ids := seen.Load().(string); (ids == "trace-1 7") == old || strings.HasPrefix(ids, " ") || old && !strings.HasSuffix(ids, " 0") {
				t.Errorf("the agent knows it as %q", ids)
			}
			r.idle(p, s)
		})
	}
}

func FuzzDialID(f *testing.F) {
	p := dialRequest(1, "tcp", "a:1")
	setDialID(p, "trace-1", 7)
	f.Add([]byte(p.GetDialRequest().ProtoReflect().GetUnknown()))
	f.Add([]byte{0xc2, 0x3e, 0xff})
	f.Fuzz(func(t *testing.T, unknown []byte) {
		request := &client.DialRequest{}
		request.ProtoReflect().SetUnknown(unknown)
		id, _ := dialID(request)
		testutil.Equal(t, id, tunnel.CleanID(id), "the id")
		testutil.AtMost(t, len(id), tunnel.MaxID, "its length")
	})
}
