package legacy

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Metadata keys (upstream proto/header/header.go; gRPC lower-cases them).
const (
	keyAgentID     = "agentid"
	keyIdentifiers = "agentidentifiers"
	keyToken       = "authorization"
	keyServerID    = "serverid"
	keyServerCount = "servercount"

	tokenScheme = "Bearer "

	// keyDuplex is ours: a peer that sends it, with the value duplexValue,
	// takes CLOSE_REQ and CLOSE_RSP (without an error) as the end of one
	// direction each. Both must send it. Then DIAL_CLS with the number of an
	// established dial, or CLOSE_RSP with an error, resets a connection. Old
	// peers ignore the key.
	keyDuplex   = "konnectivity-half-close"
	duplexValue = "1"
)

// The methods, from client.proto and upstream's proto/agent/agent.proto.
const (
	agentServiceName  = "AgentService"
	connectMethod     = "Connect"
	proxyServiceName  = "ProxyService"
	proxyMethod       = "Proxy"
	connectFullMethod = "/" + agentServiceName + "/" + connectMethod
)

// bidi describes a service with one method that streams both ways.
func bidi(service, method string, serve func(grpc.ServerStream) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName:    method,
			Handler:       func(_ any, stream grpc.ServerStream) error { return serve(stream) },
			ServerStreams: true,
			ClientStreams: true,
		}},
	}
}

// agentHello is what an agent says in its metadata.
type agentHello struct {
	id, identifiers, token string
	duplex                 bool
}

// outgoing attaches the hello to the context of a stream.
func (h agentHello) outgoing(ctx context.Context) context.Context {
	pairs := []string{keyAgentID, h.id, keyIdentifiers, h.identifiers, keyDuplex, duplexValue}
	if h.token != "" {
		pairs = append(pairs, keyToken, tokenScheme+h.token)
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// parseAgentHello reads an agent's metadata. AgentServiceConfig.Accept judges the values.
// Errors have a gRPC status, and no value in them: one may be a token gone astray.
func parseAgentHello(ctx context.Context) (h agentHello, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	bad := func(format string, args ...any) (agentHello, error) {
		return agentHello{}, status.Errorf(codes.InvalidArgument, format, args...)
	}
	ids, identifiers, tokens := md.Get(keyAgentID), md.Get(keyIdentifiers), md.Get(keyToken)
	switch {
	case len(ids) != 1:
		return bad("want exactly one agentID in the metadata, got %d", len(ids))
	case len(identifiers) > 1:
		return bad("want at most one agentIdentifiers in the metadata, got %d", len(identifiers))
	case len(tokens) > 1:
		return bad("want at most one Authorization in the metadata, got %d", len(tokens))
	}
	h.id = ids[0]
	if len(identifiers) == 1 {
		h.identifiers = identifiers[0]
	}
	if len(tokens) == 1 {
		token, ok := strings.CutPrefix(tokens[0], tokenScheme)
		if !ok {
			return agentHello{}, status.Error(codes.Unauthenticated, `want an Authorization that begins with "Bearer "`)
		}
		h.token = strings.TrimSpace(token) // upstream's agents send the file as it is
	}
	h.duplex = saysDuplex(md)
	return h, nil
}

func saysDuplex(md metadata.MD) bool {
	v := md.Get(keyDuplex)
	return len(v) == 1 && v[0] == duplexValue
}

// serverHeader is the header a server sends before anything else.
func serverHeader(id string, count int, duplex bool) metadata.MD {
	md := metadata.Pairs(keyServerID, id, keyServerCount, strconv.Itoa(max(count, 1)))
	if duplex {
		md.Set(keyDuplex, duplexValue)
	}
	return md
}

// parseServerHeader reads it.
func parseServerHeader(md metadata.MD) (id string, count int, err error) {
	ids, counts := md.Get(keyServerID), md.Get(keyServerCount)
	if len(ids) != 1 || len(counts) != 1 {
		return "", 0, fmt.Errorf("want one serverID and one serverCount in the server's header, got %d and %d; is it a konnectivity server's agent port?", len(ids), len(counts))
	}
	count, err = strconv.Atoi(counts[0])
	if err != nil || count < 0 {
		return "", 0, fmt.Errorf("the server's serverCount is %q, want a number", cleanText(counts[0]))
	}
	return ids[0], max(count, 1), nil
}
