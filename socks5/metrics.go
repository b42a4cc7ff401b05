package socks5

import "konnectivity/internal/access"

// names is what the front's metrics are called.
var names = access.Names{
	Prefix:   "konnectivity_socks5_",
	Refused:  "SOCKS5 client connections that ended before anything was dialed, by reason.",
	Requests: "SOCKS5 requests by outcome, counted when their destination answered or failed.",
	Open:     "Open SOCKS5 client connections, those still in their handshake included.",
	Reasons:  reasons,
}
