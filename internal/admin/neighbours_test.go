package admin

import (
	"fmt"
	"net"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// connect makes a table know of a connection.
func connect(table *Table, f *tunnel.Flow) {
	f.Opened = time.Now()
	table.Opened(f)
}

func source(text string) net.Addr { return tunnel.Addr{Net: "tcp", Text: text} }

func TestFrontendsAreNeighbours(t *testing.T) {
	table := NewTable()
	for i := range 3 {
		connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "grpc", Source: &net.UnixAddr{Net: "unix"}, Address: "a:1"}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "agent", ID: "a1"}}})
		connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "connect", Source: source(fmt.Sprintf("10.0.0.%d:7", i/2)), Address: "a:1"}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "agent", ID: "a1"}}})
		connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "link", Source: source("10.0.0.9:7"), Address: "a:1"}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "agent", ID: "a1"}}})
		connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "agent", Source: source("10.0.0.9:7"), Address: "b:1"}})
	}
	connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "socks5", Source: source("127.0.0.1:7"), Address: "c:1"}, Result: tunnel.Result{Hop: tunnel.Direct}})
	table.sample(time.Now(), sampleEvery)
	h := mounted(Source{Table: table})
	got := map[string]int{}
	for _, p := range get[Page[Peer]](t, h, "/api/v1/peers?role=frontend,direct,destination").Items {
		got[p.Role+" "+p.ID+" "+p.Protocol] = p.Streams
	}
	want := map[string]int{
		"frontend unix socket grpc": 3, "frontend 10.0.0.0 connect": 2, "frontend 10.0.0.1 connect": 1, "frontend 127.0.0.1 socks5": 1,
		"direct bypassing the tunnel tcp": 1, "destination b:1 tcp": 3,
	}
	testutil.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "neighbours")
	testutil.Equal(t, get[Page[Peer]](t, h, "/api/v1/peers").Total, 0, "neighbours that show as peers")
}

// A sidecar whose server knows CONNECT only has a server all the same.
func TestServersWithoutALinkAreShown(t *testing.T) {
	table := NewTable()
	for _, id := range []string{"s1", "10.0.0.2:8090", "10.0.0.2:8090", "10.0.0.3:8090"} {
		connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "socks5", Address: "a:1"}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "server", ID: id}}})
	}
	table.sample(time.Now(), sampleEvery)
	h := mounted(Source{Table: table, Peers: func() []Peer {
		return []Peer{{Role: RoleServer, ID: "s1", Remote: "10.0.0.3:8090", Protocol: "link"}}
	}})
	p := get[Page[Peer]](t, h, "/api/v1/peers?role=server&sort=-rate")
	testutil.Holds(t, p.Matched == 2 && p.Items[0].ID == "10.0.0.2:8090" && p.Items[0].Protocol == "connect" &&
		p.Items[0].Streams == 2, "%+v", p)
}

func TestNeighboursAreBounded(t *testing.T) {
	table := NewTable()
	for i := range 10 * keptNeighbours {
		connect(table, &tunnel.Flow{Request: tunnel.Request{Front: "agent", Address: fmt.Sprintf("host-%d:1", i)}})
	}
	table.sample(time.Now(), sampleEvery)
	s := table.sums.Load()
	rest := s.neighbours[neighbour{"", RoleDestination, others, "tcp"}]
	testutil.Holds(t, len(s.neighbours) == keptNeighbours+1 && rest.open == 9*keptNeighbours,
		"%d neighbours, %+v as others", len(s.neighbours), rest)
}

// One tenant's clients, from however many addresses, do not take the names of another's.
func TestNeighboursAreBoundedByTenant(t *testing.T) {
	table := NewTable()
	flow := func(tenant string, from int) *tunnel.Flow {
		return &tunnel.Flow{Request: tunnel.Request{Client: &tunnel.Client{Tenant: tenant}, Front: "connect", Source: source(fmt.Sprintf("10.0.%d.%d:7", from/256, from%256))}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "agent", ID: "a"}}}
	}
	for i := range 10 * keptNeighbours {
		connect(table, flow("many", i))
	}
	for i := range keptOfEach {
		connect(table, flow("few", i))
	}
	table.sample(time.Now(), sampleEvery)
	s := table.sums.Load()
	for i := range keptOfEach {
		n := (neighbour{"few", RoleFrontend, fmt.Sprintf("10.0.0.%d", i), "connect"})
		testutil.Holds(t, s.neighbours[n].open == 1, "%v is among others", n)
	}
	testutil.AtMost(t, len(s.neighbours), keptNeighbours+keptOfEach+1, "neighbours")
}

func TestFailureTextsAreBounded(t *testing.T) {
	table := NewTable()
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = "ä"[i%2]
	}
	for range 2 * KeptFailures {
		table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: string(long), Address: string(long)}}, time.Second, &tunnel.DialError{Failure: tunnel.FailBadAddress})
	}
	for _, f := range table.failures.list("") {
		testutil.Requires(t, len(f.Destination) <= maxText+3 && len(f.ID) <= maxText+3 && f.Destination[:4] == "ää",
			"%d bytes are kept", len(f.Destination))
	}
}
