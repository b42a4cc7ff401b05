package legacy

import (
	"time"

	"google.golang.org/grpc/codes"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// Segment is one of the four ways a packet can go, as upstream's metrics have
// them (konnectivity-client pkg/common/metrics).
type Segment int

// The segments.
const (
	FromClient Segment = iota // from_client: frontend to server
	ToClient                  // to_client: server to frontend
	FromAgent                 // from_agent: agent to server
	ToAgent                   // to_agent: server to agent

	// Segments is how many there are, so that counters can be kept in an array.
	Segments = 4
)

// String is the value of the metrics' segment label.
func (s Segment) String() string {
	return [Segments]string{"from_client", "to_client", "from_agent", "to_agent"}[s]
}

// NoPacket stands for a packet type that is not known; upstream's label for it
// is "Unknown".
const NoPacket client.PacketType = -1

// known returns kind, or NoPacket if it is unknown: a peer must not be able to
// make up label values.
func known(kind client.PacketType) client.PacketType {
	if kind < client.PacketType_DIAL_REQ || kind > client.PacketType_DRAIN {
		return NoPacket
	}
	return kind
}

// Metrics is told what the packet layer sees. Its methods are called on the
// path of every packet from any goroutine: they must be quick (no label
// look-ups in Packet) and must not block.
type Metrics interface {
	// Packet counts a packet sent or received (stream_packets_total). kind is
	// one of the protocol's, or NoPacket where a peer made another one up.
	Packet(segment Segment, kind client.PacketType)
	// StreamError counts a gRPC stream that failed, or a packet that could
	// not be sent; an orderly end is none (stream_errors_total). kind is
	// NoPacket where the error is not about one.
	StreamError(segment Segment, code codes.Code, kind client.PacketType)
	// Full is told +1 as a connection's receive buffer becomes full and -1
	// as it is full no more (full_receive_channels; FromAgent is Connect's).
	Full(segment Segment, delta int)
	// Stalled counts a connection that was reset because its reader did not
	// keep up.
	Stalled(segment Segment)
	// UnknownDialResponse counts a DIAL_RSP for a dial that is not pending
	// (dial_failure_count, reason unrecognized_response).
	UnknownDialResponse()
	// Stream is told +1 and -1 as a gRPC stream of the service starts and
	// ends (grpc_connections; method is "Connect" or "Proxy").
	Stream(method string, delta int)
	// FrontendWrite is told how long a packet took to be sent to a client,
	// which waits while the client does not read
	// (frontend_write_duration_seconds).
	FrontendWrite(took time.Duration)
}

// NoMetrics is a Metrics that counts nothing; embed it to implement a part.
type NoMetrics struct{}

// Packet implements Metrics.
func (NoMetrics) Packet(Segment, client.PacketType) {}

// StreamError implements Metrics.
func (NoMetrics) StreamError(Segment, codes.Code, client.PacketType) {}

// Full implements Metrics.
func (NoMetrics) Full(Segment, int) {}

// Stalled implements Metrics.
func (NoMetrics) Stalled(Segment) {}

// UnknownDialResponse implements Metrics.
func (NoMetrics) UnknownDialResponse() {}

// Stream implements Metrics.
func (NoMetrics) Stream(string, int) {}

// FrontendWrite implements Metrics.
func (NoMetrics) FrontendWrite(time.Duration) {}
