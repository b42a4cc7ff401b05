package tunnel

import "konnectivity/tunnel/shares"

// Client is a client of a server: the holder of a certificate at one address, or a user of
// the machine by a unix socket. All its Flows point to the same Client, so what it may use is
// shared by its connections, however many there are. A Client does not change; its budgets
// and shares may be used by any goroutine.
type Client struct {
	Tenant string   // name of its cluster; "": the server's own
	Who    Identity // as proved at its first hop

	Budget *shares.Budget // memory of its connections, and of what they leave unread on links; nil: no bound
	GRPC   *shares.Budget // memory of what its connections leave unread by gRPC; nil: no bound of its own

	Dials   *shares.Share // pending dials
	Resumes *shares.Share // pending dials that resume a connection; neither kind fails for the other
	Sockets *shares.Share // connections to destinations that the server itself makes
}
