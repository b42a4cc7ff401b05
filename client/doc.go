// Package client connects a Go program to what the agents of a konnectivity server reach,
// without a sidecar: a CSI driver, a controller, a monitoring program.
//
//	c, err := client.New(client.Options{
//		Address: "konnectivity-server-local:8090", // or Socket: "/run/konnectivity/server.sock"
//		CAFile:  "ca.crt", CertFile: "tls.crt", KeyFile: "tls.key",
//	})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	conn, err := c.DialContext(ctx, "tcp", "kubernetes.default.svc:443")
//
// DialContext fits http.Transport.DialContext and rest.Config.Dial as it is, grpc by
// grpc.WithContextDialer, and a Client is a Dialer and a ContextDialer of
// golang.org/x/net/proxy. A name is looked up by the agent, in the data plane.
//
// # Connections
//
// A connection is a net.Conn, and has a method CloseWrite() error, which ends the direction
// to the destination and leaves the other open, as that of *net.TCPConn. A FIN and a reset
// of the destination arrive as such: io.EOF, and an error for which errors.Is(err,
// syscall.ECONNRESET) holds; by CONNECT, a write may fail with syscall.EPIPE instead.
// RemoteAddr is the destination, by CONNECT as it was dialed. A unix socket cannot tell of
// a reset, so by Options.Socket that, too, is read as io.EOF. By a link, connections share
// one TLS connection to the server, each with its own flow control, and outlive it: when it
// is lost, or the server is replaced, reads and writes pause until another is there, for up
// to Options.ResumeWindow. By CONNECT, each connection has a TLS connection of its own and
// ends with it; and after a Write that met its deadline, further ones fail, as those of
// *tls.Conn do.
//
// # Errors
//
// Errors of DialContext are a *DialError, which says by its Failure what did not work: the
// destination (Refused, NoSuchHost), the way to it (Unavailable, NoAgent), or a rule
// (Denied, Bound). Failure.Retryable tells that it failed on the way and another try
// may get through. A *DialError is a net.Error, and counts as syscall.ECONNREFUSED,
// EHOSTUNREACH, ENETUNREACH or ECONNRESET where a dial without a tunnel fails so.
// Errors hold no secret.
//
// # Stability
//
// What this package exports keeps its meaning within a major version of the suite; other
// packages of this module are not meant for import, though some names lead to their types.
package client
