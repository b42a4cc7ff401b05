package egress

import (
	"fmt"
	"math"
	"sync"

	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// clients divides the descriptors for destinations among the clients of the servers, so
// that one that opens ever more connections does not take them from the others. Without
// numbers of clients, as over gRPC, a server is one client.
type clients struct {
	pool *shares.Pool

	mu    sync.Mutex
	known map[tunnel.Origin]*shares.Share // of those that have connections
}

// newClients divides that many descriptors; 0: no bound.
func newClients(descriptors int) *clients {
	if descriptors <= 0 {
		descriptors = math.MaxInt32
	}
	return &clients{pool: shares.NewPool(int64(descriptors)), known: make(map[tunnel.Origin]*shares.Share)}
}

// enter counts a connection of f's client until f ends. It returns an error if the client
// has used its share up.
func (c *clients) enter(f *tunnel.Flow) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	share := c.known[f.Origin]
	if share == nil {
		share = c.pool.Share()
	}
	if !share.Take(1) {
		return &tunnel.DialError{Failure: tunnel.FailExhausted, Address: f.Address,
			Reason: fmt.Sprintf("this client's share is used up: the agent has %d connections for it", share.Used())}
	}
	c.known[f.Origin] = share
	origin := f.Origin
	f.AtEnd(func() { c.leave(origin) })
	return nil
}

// leave ends what enter began.
func (c *clients) leave(origin tunnel.Origin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	share := c.known[origin]
	if share.Give(1); share.Used() == 0 {
		delete(c.known, origin)
	}
}
