package httpsproxy

import "konnectivity/internal/front"

// What a request was, as a metric's label.
const (
	kindConnect = "connect"
	kindForward = "forward"
	kindUpgrade = "upgrade"
)

// How a request ended, as a metric's label, besides front.OutcomeOK and the labels
// of tunnel.Failure for a dial that failed.
const (
	outcomeInvalid = "invalid" // not a request for a proxy
	outcomeLoop    = "loop"    // for this proxy itself
	outcomeBroken  = "broken"  // broken off by the destination or the client
)

// names is what the front's metrics are called.
var names = front.Names{
	Prefix:   "konnectivity_https_proxy_",
	Refused:  "HTTP proxy client connections that were refused or evicted because too many are open.",
	Requests: "HTTP proxy requests, by kind and outcome, counted when their destination answered or failed.",
	Open:     "Open HTTP proxy client connections, those without a request included.",
	Kinds:    []string{kindConnect, kindForward, kindUpgrade},
}
