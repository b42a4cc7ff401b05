package tunnel

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"konnectivity/tunnel/shares"
)

// Request is what a client asks of a front. It is set before the dial and does not
// change. It is copied as a whole, so that no try and no redial of a connection
// lacks a field.
type Request struct {
	ID      string   // follows the connection across hops: NewID, or as it came
	Front   string   // who asked: "connect", "grpc", "link", "socks5", ... (a metric label)
	Network string   // "tcp"
	Address string   // host:port
	Source  net.Addr // the client; nil if it has no address
	Client  *Client  // of a server, which admitted it; nil elsewhere

	// Rules limit the addresses that the name in Address may have, in the form of package
	// policy's Told; "": any. A process that cannot apply them refuses the dial, by Unjudged.
	Rules string
}

// RulesSize is the most bytes of a Request's Rules: some four hundred networks.
const RulesSize = 8 << 10

// Origin tells apart the clients of an agent, and those for whom servers forward. It is
// comparable.
type Origin struct {
	Server  string `json:"server"` // id of the server that asked
	Client  uint64 `json:"client"` // that server's number of the client; 0: it tells none
	Cluster string `json:"-"`      // whose client it is, at a server; "": the server's own

	Who Identity `json:"who,omitempty"` // that client, as the server tells
}

// Result is what a dial has found out. Like Request, it is copied as a whole.
type Result struct {
	Hop       Hop
	Route     Route
	Resolved  string    // the address that was dialed (of a proxy: the proxy's), ip:port; "" if the name went out as it is
	Rule      string    // of a policy file, that allows it here; "": there is none, or none that has to
	Resumable Resumable // nil: the connection ends with what carries it, or outlives it at other processes
}

// Flow describes one connection from its front to its end: the request, the result
// of the dial, and the bytes that have passed since. Dialers hand it down, the relay
// counts in it, and observers read it. It must not be copied; a dialer that tries
// another address, or several at once, gives each try a Flow of its own (To) and
// takes over the Result of the try that succeeded (TakeResult).
type Flow struct {
	Request

	// Origin is, at an agent, and at a server where another server asks, whose connection
	// it is; zero elsewhere. It is no part of Request, which each end keeps that can resume.
	Origin Origin

	// Resume is set where the connection is to outlive what carries it; its
	// Granted is what the dial found out.
	Resume *Resume

	// Span names what a Tracer notes of the dial.
	Span Span

	// Result is written by the dialers, one at a time, until Dial has returned,
	// also with an error. It may be read from then on.
	Result

	// Adopted tells that another process has dialed the connection, and has handed it over.
	Adopted bool

	// HandedOver tells Observers of the end that the connection goes on in another process.
	HandedOver bool

	// Added by the Forwarder: Far before it tells Observers that a dial has succeeded, Opened
	// before it tells them of the opening.

	Far    net.Addr  // the far end as its transport tells it; nil if it does not
	Opened time.Time // zero until then

	// Bytes by direction: up, which is away from the client, then down.

	total atomic.Pointer[Totals] // counted along; nil: nowhere
	sent  [2]atomic.Int64
	held  [2]atomic.Bool // bytes wait to be taken

	after *after // run at the end
}

// Span has the ids of two spans of a trace (docs/traces.md); 0: there is none.
type Span struct {
	ID     uint64 // of the dial here; the next hop is told, if that is one of ours
	Parent uint64 // of the dial at the hop before, or a client's, as it has told
}

// after is a function to call at a flow's end, and the next one.
type after struct {
	do   func()
	next *after
}

// AtEnd calls do when the connection has ended or could not be made; the last one added is
// called first. Only a Handler before it calls the next one's Serve, and a Dialer during its
// Dial, may call AtEnd.
func (f *Flow) AtEnd(do func()) { f.after = &after{do, f.after} }

// end calls what AtEnd has added.
func (f *Flow) end() {
	for a := f.after; a != nil; a = a.next {
		a.do()
	}
	f.after = nil
}

// Totals are the payload bytes of many flows, such as all of a process, by
// direction: Up is away from who asked. They may be read at any time.
type Totals struct {
	Up, Down atomic.Int64
}

// Load returns both.
func (t *Totals) Load() (up, down int64) { return t.Up.Load(), t.Down.Load() }

// The roles of processes, as words.
const (
	RoleAgent  = "agent"
	RoleClient = "client" // a sidecar, linked to a server
	RoleServer = "server"
)

// Hop is the process that a dial was handed to next. The zero Hop is unknown, or the
// destination itself.
type Hop struct {
	Role string // RoleAgent, RoleServer or that of Direct
	ID   string // of the agent or server; its address where it has told no id
}

// String is how logs and the status API show a hop: "agent NAME".
func (h Hop) String() string {
	if h.ID == "" {
		return h.Role
	}
	return h.Role + " " + h.ID
}

// Direct is the Hop of connections that bypass the tunnel.
var Direct = Hop{Role: "direct"}

// Route is the way that a sidecar's connection went, as a metric's label.
type Route string

// The routes. A dial that failed before a way was chosen has none.
const (
	RouteTunnel   Route = "tunnel"         // through the server and an agent
	RouteDirect   Route = "direct"         // the bypass
	RouteCustomer Route = "customer_proxy" // through the tunnel to the customer's proxy
	RouteFallback Route = "fallback"       // direct, since the tunnel is deemed down
)

// NewFlow returns a Flow to address, host:port, that no front was asked for.
func NewFlow(network, address string) *Flow {
	return &Flow{Request: Request{ID: NewID(), Network: network, Address: address}}
}

// CheckTCP returns a *DialError with FailBadAddress unless f asks for a TCP connection to a
// host and a port.
func (f *Flow) CheckTCP() error {
	if f.Network != "tcp" && f.Network != "tcp4" && f.Network != "tcp6" {
		return &DialError{Failure: FailBadAddress, Address: f.Address, Reason: "only TCP goes through the tunnel"}
	}
	_, _, err := SplitAddress(f.Address)
	return err
}

// Tenant returns the name of the cluster that the connection belongs to, or "" where
// no server of many clusters was asked for it.
func (f *Flow) Tenant() string {
	if f.Client == nil {
		return ""
	}
	return f.Client.Tenant
}

// errUnjudged is the cause of the error of Unjudged.
var errUnjudged = errors.New("destination not allowed by policy: the rules are about addresses, and the agent cannot judge by them which address the name has")

// Unjudged is the error of a dial with Rules that a peer does not know.
func (f *Flow) Unjudged() error {
	return &DialError{Failure: FailDenied, Address: f.Address, Reason: errUnjudged.Error(), Err: errUnjudged}
}

// IsUnjudged says that a dial failed by Unjudged in this process, so that the peer was not
// asked.
func IsUnjudged(err error) bool { return errors.Is(err, errUnjudged) }

// Who returns the client that the connection is for, as proved at the first hop; "" where it
// is not known.
func (f *Flow) Who() Identity {
	if f.Client == nil {
		return f.Origin.Who
	}
	return f.Client.Who
}

// To returns a Flow for one try of f at another address. The try begins with what f
// has found out so far. The two share nothing else: f sees what the try's dialers
// find out once f takes its Result, and the relay counts in f alone.
func (f *Flow) To(address string) *Flow {
	try := &Flow{Request: f.Request, Span: f.Span, Result: f.Result}
	try.Address = address
	return try
}

// TakeResult takes over what try has found out by now. f does not see what changes in
// try afterwards. It belongs to the dial: call it before Dial returns f to its owner.
func (f *Flow) TakeResult(try *Flow) { f.Result = try.Result }

// Sent returns the bytes carried so far away from who asked (up) and back. Any
// goroutine may call it at any time.
func (f *Flow) Sent() (up, down int64) { return f.sent[0].Load(), f.sent[1].Load() }

// Held says whether bytes wait at this moment to be taken by the far end (up)
// and by who asked (down). One that stays held while Sent stands still has a
// reader that stalled. Any goroutine may call it at any time.
func (f *Flow) Held() (up, down bool) { return f.held[0].Load(), f.held[1].Load() }

// Hold notes whether bytes now wait for the far end (up) or for who asked. A
// Relay calls it by itself. This and Carry are for a front that has to parse
// what it passes on, such as HTTP messages. Any goroutine may call them.
func (f *Flow) Hold(up, held bool) {
	f.held[side(up)].Store(held)
}

// Carry notes that n bytes were passed on, away from who asked (up) or back.
// What is noted before Forwarder.Begin is missing in the Forwarder's Total.
func (f *Flow) Carry(up bool, n int) { f.counters(up).add(n) }

// side is where a direction is in the arrays of a Flow.
func side(up bool) int {
	if up {
		return 0
	}
	return 1
}

// tally is what counts the bytes of one direction: the flow's own counter, and
// that of the Totals it is part of, or nil.
type tally [2]*atomic.Int64

func (t tally) add(n int) {
	for _, c := range t {
		if c != nil {
			c.Add(int64(n))
		}
	}
}

// own is what the flow itself has counted.
func (t tally) own() int64 { return t[0].Load() }

func (f *Flow) counters(up bool) tally {
	t := tally{&f.sent[side(up)], nil}
	if total := f.total.Load(); total != nil {
		t[1] = &total.Down
		if up {
			t[1] = &total.Up
		}
	}
	return t
}

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
