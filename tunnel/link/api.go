package link

import "slices"

const (
	// FeatureAPI is named in the HELLO of agents whose node reaches its Kubernetes API
	// server by the link, and of servers to agents (§13).
	FeatureAPI = "api"

	// FeatureAPIServer is named in the HELLO of an agent beside the API server, and of
	// servers that use such agents, at their port for clients (§13).
	FeatureAPIServer = "api-server"
)

const (
	// NetworkAPI is the network in the OPEN of a stream to the API server.
	NetworkAPI = "api"

	// APIAddress is the address there. It means nothing, but has to parse.
	APIAddress = "kubernetes:443"
)

// BesideAPIServer says whether a link's peer introduces itself as an agent beside the API
// server.
func (h Hello) BesideAPIServer() bool {
	return h.Role == RoleAgent && slices.Contains(h.Features, FeatureAPIServer)
}

// API says whether an agent at one side may ask the server at the other for its
// cluster's API server (§13).
func (ses *Session) API() bool { return ses.api }

// Charge has streams that the peer opens count in b instead of the Config's Budget. It may
// be called between Meet and Run.
func (ses *Session) Charge(b *Budget) { ses.intake.budget = b }
