package legacy

import "google.golang.org/grpc"

// ServerCodec makes a gRPC server that can register the services of this
// package. Messages of other services on it are treated as ever.
func ServerCodec() grpc.ServerOption { return grpc.EmptyServerOption{} }

// ClientCodec is the same for a client connection. ConnectAgent needs no such
// option; it sees to its own stream.
func ClientCodec() grpc.DialOption { return grpc.EmptyDialOption{} }
