package resume

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// moveTime bounds how long Moves.Next waits for carriers that still deliver.
	moveTime = time.Second

	// moveRounds is how often Moves.Next picks connections that all end before they are out
	// of use, or whose carriers deliver too long.
	moveRounds = 4

	// adoptTime is how long a request to resume waits for its connection to be handed over:
	// longer than a batch takes, and shorter than a server waits, which then asks the agent
	// before.
	adoptTime = 100 * time.Millisecond

	// relayTime bounds how long a relay takes to end whose two sides take all that it has.
	// It is for a machine that is starved.
	relayTime = 30 * time.Second
)

// errMoving refuses an opener's carrier while the connection may be found at another process
// in a moment.
var errMoving = &tunnel.DialError{Failure: tunnel.FailAgentLost, Reason: "the connection is being handed over to another agent"}

// served is what uses an acceptor's connection: the relay to its destination.
type served struct {
	far    tunnel.Conn    // the destination
	asked  tunnel.Request // of the flow
	origin tunnel.Origin
	cancel context.CancelCauseFunc
	budget *link.Budget // of the client that it is for

	// Guarded by Conn.mu.

	socket *tunnel.Seized // the destination's, which was taken from the relay; nil: it has it
	over   bool           // the relay has ended
}

// relayEnded notes that the relay has ended.
func (c *Conn) relayEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served.over = true
	c.changed.Broadcast()
}

// Move is a connection that is out of use, on its way to another process. Exactly one of
// Done and Undo ends that.
type Move struct {
	Snapshot
	Socket *tunnel.Seized // nil: Left
	conn   *Conn
}

// SetHandingOver tells m whether another process may have the connections that it does not
// know: an opener that asks for one waits for adoptTime, and is then told to ask again.
func (m *Manager) SetHandingOver(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adopted != nil {
		close(m.adopted)
		m.adopted = nil
	}
	if on {
		m.adopted = make(chan struct{})
	}
}

// find returns the accepted connection with that token, also one that was reset here lately, or
// why there is none.
func (m *Manager) find(token [16]byte) (*Conn, error) {
	var late <-chan time.Time
	for {
		m.mu.Lock()
		c, adopted := m.acceptedLocked(token), m.adopted
		m.mu.Unlock()
		if c == nil {
			c = m.ended.get(token)
		}
		switch {
		case c != nil:
			return c, nil
		case adopted == nil:
			return nil, errGone
		case late == nil:
			late = time.After(adoptTime)
		}
		select {
		case <-adopted:
		case <-late:
			return nil, errMoving
		}
	}
}

// errGone refuses a carrier for a connection that is not there.
var errGone = &tunnel.DialError{Failure: tunnel.FailGone}

// Moves takes the connections of a Manager out of use, to be handed to another process. It
// is for one goroutine.
type Moves struct {
	m    *Manager
	left []*Conn // to look at; then there is another round, for those that stayed
}

// Moves begins to take out connections.
func (m *Manager) Moves() *Moves { return &Moves{m: m} }

// Next takes out at most n connections, and no other once they keep some number of bytes. It
// returns none once there are no more that can be moved: those that others have opened, and
// whose destination is a plain socket. It blocks until their relays have ended.
func (v *Moves) Next(n, bytes int) []*Move {
	for range moveRounds {
		moving := v.begin(n, bytes)
		if len(moving) == 0 {
			v.left = v.m.all()
			moving = v.begin(n, bytes)
		}
		if moves := takeOut(moving); len(moves) > 0 || len(moving) == 0 {
			return moves
		}
	}
	return nil
}

// begin begins to move connections of those left.
func (v *Moves) begin(n, bytes int) (moving []*Conn) {
	for kept := 0; len(v.left) > 0 && len(moving) < n && kept <= bytes; v.left = v.left[1:] {
		if size, ok := v.left[0].beginMove(); ok {
			moving = append(moving, v.left[0])
			kept += size
		}
	}
	return moving
}

// Movable returns how many connections Moves would find, and how many of these have a
// destination.
func (m *Manager) Movable() (all, connected int) {
	for _, c := range m.all() {
		c.mu.Lock()
		if c.movable() {
			all++
			if !c.served.over {
				connected++
			}
		}
		c.mu.Unlock()
	}
	return all, connected
}

func (c *Conn) movable() bool {
	return c.m.Movable() && c.served != nil && (c.served.over || tunnel.CanSeize(c.served.far))
}

// takeOut returns the moves of those connections that have not ended meanwhile. All relays
// end at once.
func takeOut(moving []*Conn) (moves []*Move) {
	until := time.Now().Add(moveTime)
	moving = slices.DeleteFunc(moving, func(c *Conn) bool { return !c.seize(until) })
	for _, c := range moving {
		if move := c.takeOut(); move != nil {
			moves = append(moves, move)
		}
	}
	return moves
}

// beginMove gives up the carrier of c, if c can be moved and is not on its way, and returns
// how many bytes c keeps.
func (c *Conn) beginMove() (kept int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.movable() {
		return 0, false
	}
	c.step(c.m.MoveBegins(time.Now()))
	return c.m.Out.Kept(), c.m.Moving()
}

// seize waits until the offsets are final, and takes the destination's socket from the
// relay, which ends. It returns false where the connection has ended meanwhile. One whose
// carrier still delivers then stays.
func (c *Conn) seize(until time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(until, c.m.OffsetsFinal)
	if !c.m.Moving() || !c.m.OffsetsFinal() {
		c.step(c.m.MoveFails())
		if c.served.over && !c.m.Over() { // its Close had no effect meanwhile
			c.mu.Unlock()
			_ = c.Close()
			c.mu.Lock()
		}
		return false
	}
	if !c.served.over {
		c.served.socket, _ = tunnel.Seize(c.served.far)
		c.changed.Broadcast() // a writer that waits for room has some: its relay reads no more
		c.served.cancel(tunnel.ErrSeized)
	}
	return true
}

// takeOut waits until the relay has ended. It returns nil where the connection has ended
// meanwhile.
func (c *Conn) takeOut() *Move {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(time.Now().Add(relayTime), func() bool { return c.served.over })
	socket := c.served.socket
	switch {
	case !c.m.Moving():
	case !c.served.over:
		c.step(c.m.Reset(errClosed, false, time.Now()))
	case socket == nil || socket.Closed(): // it had all before
		return &Move{Snapshot: c.snapshot(nil), conn: c}
	default:
		return &Move{Snapshot: c.snapshot(socket), Socket: socket, conn: c}
	}
	if socket != nil {
		_ = socket.Close()
	}
	return nil
}

// seized reports whether c is Moving, and its relay has no more than it holds.
func (c *Conn) seized() bool { return c.m.Moving() && c.served.socket != nil }

// await waits until done, or until the connection is over or it is too late.
func (c *Conn) await(until time.Time, done func() bool) {
	var late tunnel.Deadline
	late.Set(until, &c.changed)
	defer late.Stop()
	for !done() && c.m.Moving() && !late.Passed() {
		c.changed.Wait()
	}
}

// snapshot is what another process needs to go on. A connection without a socket is Left.
func (c *Conn) snapshot(socket *tunnel.Seized) Snapshot {
	s := Snapshot{
		Token: c.token, ID: c.served.asked.ID, Origin: c.served.origin, Rules: c.served.asked.Rules,
		Network: c.served.asked.Network, Address: c.address, Local: addrPort(c.dest[0]), Remote: addrPort(c.dest[1]), Left: socket == nil,
	}
	c.m.Describe(&s)
	if socket != nil {
		s.Owed, s.FinSent = socket.Owed(), socket.FinSent()
	}
	return s
}

// addrPort is the address of a TCP socket; zero for another's.
func addrPort(a net.Addr) (of netip.AddrPort) {
	if tcp, ok := a.(*net.TCPAddr); ok {
		of = tcp.AddrPort()
	}
	return of
}

// Done notes that the other process has the connection. Nothing may use the Snapshot's Kept
// after it.
func (v *Move) Done() {
	v.end()
	tunnel.ReleaseAll(v.Kept)
	if !v.Left {
		_ = v.Socket.Close()
	}
}

// Undo goes on with the connection here, as Adopt would elsewhere.
func (v *Move) Undo(next func(far tunnel.Conn) tunnel.Handler) error {
	v.end()
	var far tunnel.Conn
	if !v.Left {
		far = v.Socket.Conn()
	}
	return v.conn.manager.Adopt(v.Snapshot, far, next)
}

func (v *Move) end() {
	v.conn.mu.Lock()
	defer v.conn.mu.Unlock()
	v.conn.step(v.conn.m.MoveEnds())
}

// Adopt goes on with a connection of which another process had the acceptor's end. far is
// its destination, nil if it was Left; m closes it, also with an error. next makes what
// serves it; where that answers with an error, the policy forbids the connection, and it ends. Adopt
// takes over s.Kept.
func (m *Manager) Adopt(s Snapshot, far tunnel.Conn, next func(far tunnel.Conn) tunnel.Handler) error {
	life, cancel := context.WithCancelCause(m.ctx)
	if s.Network == "" { // from an agent of before
		s.Network = "tcp"
		if s.Address == link.APIAddress {
			s.Network = link.NetworkAPI
		}
	}
	c := m.newConn(nil, 0, 0, s.Token, s.Address)
	c.m = restore(s, time.Now())
	asked := tunnel.Request{ID: s.ID, Front: "link", Network: s.Network, Address: s.Address, Rules: s.Rules}
	c.served = &served{far: far, asked: asked, origin: s.Origin, cancel: cancel, budget: m.budgetOf(s.Origin), over: s.Left}
	use := c.drop
	if !s.Left {
		c.dest = [2]net.Addr{net.TCPAddrFromAddrPort(s.Local), net.TCPAddrFromAddrPort(s.Remote)}
		far = tunnel.With(far, tunnel.Parts{Local: c.dest[0], Remote: c.dest[1]})
		use = func() { c.serve(life, next(far), s) }
	}
	c.status.Store(&tunnel.ResumeStatus{Lost: time.Now(), Loss: c.m.Loss()})
	c.mu.Lock() // its opener may have found it before it is complete
	defer c.mu.Unlock()
	err := m.add(c, nil)
	if err == nil && !m.start(use) {
		err = errClosed
	}
	if err != nil {
		c.m.Release()
		cancel(err)
		if far != nil {
			_ = far.Reset(err)
		}
		return err
	}
	m.lost(c)
	m.tellAdopted()
	c.step(c.m.Written(false)) // the window begins
	return nil
}

// tellAdopted lets those look again that wait for a connection.
func (m *Manager) tellAdopted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.adopted != nil {
		close(m.adopted)
		m.adopted = make(chan struct{})
	}
}

// serve relays between c, which was adopted, and its destination. What that is owed comes
// before all that c receives.
func (c *Conn) serve(ctx context.Context, by tunnel.Handler, s Snapshot) {
	flow := &tunnel.Flow{Request: c.served.asked, Origin: s.Origin, Adopted: true}
	c.manager.wg.Add(1) // until the end
	by.Serve(ctx, flow, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
		if err != nil {
			c.happened((*Machine).Forbidden)
			return nil, err
		}
		flow.Resumable = c
		return tunnel.Unread(c, s.Owed), nil
	}, func(error) {
		c.relayEnded()
		c.served.cancel(nil)
		c.manager.wg.Done()
	})
}
