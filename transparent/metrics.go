package transparent

import "konnectivity/internal/access"

// Why a connection ended before its dial, as a metric's label.
const (
	reasonLimit         = "limit"          // too many connections are open
	reasonNotRedirected = "not_redirected" // it was made to this port itself
)

// names is what the front's metrics are called.
var names = access.Names{
	Prefix:   "konnectivity_transparent_",
	Refused:  "Connections to the transparent port that ended before anything was dialed, by reason.",
	Requests: "Redirected connections by outcome, counted when their destination answered or failed.",
	Open:     "Open redirected connections.",
	Reasons:  []string{reasonLimit, reasonNotRedirected},
}
