package tunnel

import (
	"net"
	"sync/atomic"
	"time"
)

// Flow is one connection from the front that was asked for it to its end: what
// was asked, what the dial found out, and what has passed since. It is handed
// down the dialers, held by the relay, and shown to observers. It must not be
// copied; a dialer that asks for another address, or for several at once, gives
// each try a Flow of its own (To) and takes over that of the one that counts
// (Adopt).
type Flow struct {
	// What was asked. It is set before the dial and does not change.

	ID      string   // follows the connection across hops: NewID, or as it came
	Front   string   // who asked: "connect", "grpc", "link", "socks5", ... (a metric label)
	Network string   // "tcp"
	Address string   // host:port
	Source  net.Addr // the client; nil if it has no address

	// What the dial found out. Its dialers write it, one at a time, until Dial
	// has returned, also with an error; it is for reading from then on.

	Hop      Hop
	Route    Route
	Resolved string // the address that was dialed (of a proxy: the proxy's), ip:port; "" if the name went out as it is

	// What the Forwarder adds before it tells Observers of the opening.

	Far    net.Addr  // the far end as its transport tells it; nil if it does not
	Opened time.Time // zero until then

	total *Traffic // counted along; nil: nowhere
	sent  Traffic
	held  [2]atomic.Bool // bytes wait for the far end, for the near one
}

// Traffic counts payload bytes by direction: Up is away from who asked. It may
// be read at any time.
type Traffic struct {
	Up, Down atomic.Int64
}

// Hop is who a dial was handed to next. The zero Hop is not known, or the
// destination itself.
type Hop struct {
	Role string // "agent", "server" or "direct"
	ID   string // of the agent or server; its address where it has told no id
}

// String is how logs and the status API show a hop: "agent NAME".
func (h Hop) String() string {
	if h.ID == "" {
		return h.Role
	}
	return h.Role + " " + h.ID
}

// Direct is the Hop of what goes past the tunnel.
var Direct = Hop{Role: "direct"}

// Route is the way a sidecar's connection went; a metric label.
type Route string

// The routes. A dial that failed before a way was chosen has none.
const (
	RouteTunnel   Route = "tunnel"         // through the server and an agent
	RouteDirect   Route = "direct"         // the bypass
	RouteCustomer Route = "customer_proxy" // through the tunnel to the customer's proxy
	RouteFallback Route = "fallback"       // direct, since the tunnel is deemed down
)

// NewFlow is a Flow to address, host:port, that no front has asked for.
func NewFlow(network, address string) *Flow {
	return &Flow{ID: NewID(), Network: network, Address: address}
}

// To is a Flow for one try of f at another address.
func (f *Flow) To(address string) *Flow {
	return &Flow{ID: f.ID, Front: f.Front, Network: f.Network, Address: address, Source: f.Source}
}

// Adopt takes over what a try found out, and keeps what it did not.
func (f *Flow) Adopt(try *Flow) {
	if try.Hop != (Hop{}) {
		f.Hop = try.Hop
	}
	if try.Route != "" {
		f.Route = try.Route
	}
	if try.Resolved != "" {
		f.Resolved = try.Resolved
	}
}

// Sent returns the bytes carried so far away from who asked (up) and back. Any
// goroutine may call it at any time.
func (f *Flow) Sent() (up, down int64) { return f.sent.Up.Load(), f.sent.Down.Load() }

// Held says whether bytes wait at this moment to be taken by the far end (up)
// and by who asked (down). One that stays held while Sent stands still has a
// reader that stalled. Any goroutine may call it at any time.
func (f *Flow) Held() (up, down bool) { return f.held[0].Load(), f.held[1].Load() }

// Hold notes whether bytes now wait for the far end (up) or for who asked. A
// Relay does so by itself; this and Carry are for a front that has to parse
// what it passes on, such as HTTP messages. Any goroutine may call them.
func (f *Flow) Hold(up, held bool) {
	if up {
		f.held[0].Store(held)
		return
	}
	f.held[1].Store(held)
}

// Carry notes that n bytes were passed on, away from who asked (up) or back.
func (f *Flow) Carry(up bool, n int) {
	for _, c := range f.counters(up) {
		if c != nil {
			c.Add(int64(n))
		}
	}
}

func (f *Flow) counters(up bool) [2]*atomic.Int64 {
	own, total := &f.sent.Down, (*atomic.Int64)(nil)
	if up {
		own = &f.sent.Up
	}
	if f.total != nil {
		total = &f.total.Down
		if up {
			total = &f.total.Up
		}
	}
	return [2]*atomic.Int64{own, total}
}
