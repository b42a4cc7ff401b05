package admin

import (
	"time"

	"konnectivity/internal/version"
	"konnectivity/tunnel"
)

// Version is the version of the API. Fields may be added within a version; existing
// fields keep their names and meanings.
const Version = "v1"

// Status answers /api/v1/status, the summary.
type Status struct {
	APIVersion string       `json:"apiVersion"`
	Component  string       `json:"component"` // the program's name
	ID         string       `json:"id,omitempty"`
	Tenant     string       `json:"tenant,omitempty"` // "" means all
	Build      version.Info `json:"build"`
	Started    Past         `json:"started"`
	Now        time.Time    `json:"now"`
	Ready      bool         `json:"ready"`
	Reason     string       `json:"reason,omitempty"` // why it is not ready

	Connections Connections    `json:"connections"`
	Dials       Dials          `json:"dials"`
	Rates       Point          `json:"rates"` // bytes over the last two seconds; the others over the newest interval of the history
	Peers       map[string]int `json:"peers"` // number of peers by role

	// ServerCount is the number of servers, and Strategies the number of agents that
	// each strategy can use. Only a server sets them.
	ServerCount int            `json:"serverCount,omitempty"`
	Strategies  map[string]int `json:"strategies,omitempty"`

	// Unlinked are the other servers to which there is no link: of a server that forwards.
	Unlinked []Unlinked `json:"unlinked,omitempty"`

	// AuditError says why records of the audit log cannot be written; "" if they can.
	AuditError string `json:"auditError,omitempty"`

	// PolicyError says why the policy file cannot be used, so that the rules before hold; ""
	// if it can.
	PolicyError string `json:"policyError,omitempty"`

	// Tenants is the number of tenants by state: serving, stale, broken. Only a
	// server with tenants sets it.
	Tenants map[string]int `json:"tenants,omitempty"`

	// LastGone is the last agent that left the server; nil if none has.
	LastGone *Departure `json:"lastGone,omitempty"`

	// Buffers is the received payload that waits for readers, by protocol.
	Buffers map[string]Buffer `json:"buffers,omitempty"`
}

// Unlinked is another server that cannot be linked.
type Unlinked struct {
	Address string `json:"address"`
	Cause   string `json:"cause"` // a sentence
}

// Departure describes a peer that is no longer connected.
type Departure struct {
	Time    Past   `json:"time"`
	Tenant  string `json:"tenant,omitempty"`
	Role    string `json:"role"`
	ID      string `json:"id"`
	Remote  string `json:"remote"`
	Cause   string `json:"cause"`   // a sentence
	Ordered bool   `json:"ordered"` // it left in an orderly way
}

// Connections counts connections.
type Connections struct {
	Open    int   `json:"open"`
	Stalled int   `json:"stalled"` // of the open ones
	Total   int64 `json:"total"`   // since the start

	// Resuming counts open connections that lost their link and wait for another.
	Resuming int `json:"resuming"`
}

// Dials counts dials since the start.
type Dials struct {
	Total    int64            `json:"total"`
	Failed   int64            `json:"failed"`
	Failures map[string]int64 `json:"failures"` // by tunnel.Failure's label
}

// Buffer is memory in bytes.
type Buffer struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

// Page is a part of a list.
type Page[T any] struct {
	Total   int `json:"total"`   // in the whole list
	Matched int `json:"matched"` // by the filter
	Offset  int `json:"offset"`  // of the first item among those that matched
	Items   []T `json:"items"`
}

// Roles of peers.
const (
	RoleClient = tunnel.RoleClient
	RoleServer = tunnel.RoleServer
	RoleAgent  = tunnel.RoleAgent
)

// Peer is a connection to another process of the suite.
type Peer struct {
	Tenant      string   `json:"tenant,omitempty"`
	Role        string   `json:"role"` // the peer's
	ID          string   `json:"id"`
	Software    string   `json:"software,omitempty"` // as it calls itself
	Protocol    string   `json:"protocol"`           // "link" or "grpc"
	Remote      string   `json:"remote"`
	Identity    []string `json:"identity,omitempty"`    // of an agent or a client: the names that it has proved
	Identifiers string   `json:"identifiers,omitempty"` // an agent's, which strategies use
	Since       Past     `json:"since"`
	Draining    bool     `json:"draining,omitempty"`
	Streams     int      `json:"streams"`
	Pending     int      `json:"pendingDials,omitempty"`

	RoundTrip float64 `json:"roundTripSeconds,omitempty"` // 0: not measured
	Silent    float64 `json:"silentSeconds,omitempty"`    // set only if the peer has been silent for too long
	Window    uint64  `json:"windowBytes,omitempty"`      // the largest of its streams
	Unread    int     `json:"unreadBytes,omitempty"`      // received and not yet read here
	Lanes     int     `json:"lanes,omitempty"`            // TCP connections that the link has
	Stalled   int     `json:"stalled"`                    // connections
	Up        float64 `json:"upBytesPerSecond"`
	Down      float64 `json:"downBytesPerSecond"`
}

// States of a connection.
const (
	StateActive  = "active"  // it carried bytes within the last two seconds
	StateIdle    = "idle"    // neither side has anything to send
	StateStalled = "stalled" // bytes wait for a side that does not read

	StateResuming = "resuming" // it lost its link and waits for another
)

// Connection is one open connection as this process sees it.
type Connection struct {
	Tenant      string   `json:"tenant,omitempty"`
	ID          string   `json:"id"`    // the same on every hop
	Front       string   `json:"front"` // the protocol of the client
	Source      string   `json:"source,omitempty"`
	Identity    []string `json:"identity,omitempty"` // of the client, which has proved these names at the first hop
	Destination string   `json:"destination"`
	Resolved    string   `json:"resolved,omitempty"` // the address that was dialed, where it is known
	Next        string   `json:"next,omitempty"`     // the hop after this one
	Since       Past     `json:"since"`

	State      string  `json:"state"`
	StalledBy  string  `json:"stalledBy,omitempty"` // the side that does not read: "client" or "destination"
	StalledFor float64 `json:"stalledSeconds,omitempty"`

	ResumingFor float64 `json:"resumingSeconds,omitempty"`
	Resumes     int     `json:"resumes,omitempty"` // how often it continued over another link

	UpBytes   int64   `json:"upBytes"` // towards the destination
	DownBytes int64   `json:"downBytes"`
	Up        float64 `json:"upBytesPerSecond"`
	Down      float64 `json:"downBytesPerSecond"`
}

// Failure is a dial that failed, or a connection that ended abnormally.
type Failure struct {
	Time        Past    `json:"time"`
	Tenant      string  `json:"tenant,omitempty"`
	ID          string  `json:"id"`
	Stage       string  `json:"stage"` // "dial", "connection" or "peer"
	Front       string  `json:"front"`
	Source      string  `json:"source,omitempty"`
	Destination string  `json:"destination"`
	Next        string  `json:"next,omitempty"`
	Failure     string  `json:"failure"` // a label; tunnel.Failure's for dials
	Cause       string  `json:"cause"`
	Hint        string  `json:"hint,omitempty"`
	Seconds     float64 `json:"seconds"` // how long the dial took, or the connection lasted
}

// Tenant is one of the clusters that a server serves.
type Tenant struct {
	Name        string   `json:"name"`
	State       string   `json:"state"`           // "serving", "stale", "broken" or, about several servers, "missing"
	Error       string   `json:"error,omitempty"` // a sentence about its folder that names file and field
	Since       Past     `json:"since"`           // start of the present state
	ServerNames []string `json:"serverNames"`
	Listen      []string `json:"listen,omitempty"` // ports and sockets of this tenant alone, such as "agents on port 9091"
	Digest      string   `json:"digest,omitempty"` // of the files that are served; "" about several servers

	Agents  int    `json:"agents"`           // distinct agents
	Clients int    `json:"clients"`          // clients with links
	Ready   bool   `json:"ready"`            // whether destinations can be served
	Reason  string `json:"reason,omitempty"` // why not

	// Condition is the worst problem: State if that is "missing", "broken" or "stale"; else
	// "not-ready"; else "stalled" if a connection is stalled; else "ready".
	Condition string `json:"condition"`

	// On are the ids of the servers that have this Condition, in an answer about several.
	On []string `json:"on,omitempty"`

	Connections Connections `json:"connections"`
	Dials       Dials       `json:"dials"`
	Refused     int64       `json:"agentsRefused"` // since the start

	UpBytes   int64   `json:"upBytes"`
	DownBytes int64   `json:"downBytes"`
	Up        float64 `json:"upBytesPerSecond"`
	Down      float64 `json:"downBytesPerSecond"`
}

// TenantsPage is a part of the list of tenants.
type TenantsPage struct {
	Page[Tenant]
	Conditions map[string]int `json:"conditions"` // number of tenants by Condition, in the whole list

	// Servers is how many servers have told of tenants, in an answer about several.
	Servers int `json:"servers,omitempty"`
}

// History is the last 15 minutes, oldest first.
type History struct {
	Interval float64 `json:"intervalSeconds"`
	Points   []Point `json:"points"`
}

// Point is one interval of the history; fields with PerSecond are means over it.
type Point struct {
	Time        Past    `json:"time"` // its end
	Up          float64 `json:"upBytesPerSecond"`
	Down        float64 `json:"downBytesPerSecond"`
	Dials       float64 `json:"dialsPerSecond"`
	Failed      float64 `json:"failedPerSecond"`
	DialSeconds float64 `json:"dialSeconds"` // mean of the successful ones; 0: none
	DialMax     float64 `json:"dialMaxSeconds"`
	Open        int     `json:"open"`
	Stalled     int     `json:"stalled"`
}
