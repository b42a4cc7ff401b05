package link_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// gate is a net.Conn whose kernel can be made to take nothing.
type gate struct {
	net.Conn
	mu      sync.Mutex
	cond    sync.Cond
	shut    bool
	blocked int // writers that wait
	closed  bool
}

func newGate(c net.Conn) *gate {
	g := &gate{Conn: c}
	g.cond.L = &g.mu
	return g
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	g.blocked++
	g.cond.Broadcast()
	for g.shut && !g.closed {
		g.cond.Wait()
	}
	g.blocked--
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return g.Conn.Write(p)
}

func (g *gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.cond.Broadcast()
	g.mu.Unlock()
	return g.Conn.Close()
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.cond.Broadcast()
}

// waitBlocked returns once a writer waits at the gate.
func (g *gate) waitBlocked() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.blocked == 0 {
		g.cond.Wait()
	}
}

// plug shuts the gate and leaves a PONG waiting there, so that there is a writer.
func (r *rig) plug(g *gate) {
	r.t.Helper()
	g.set(true)
	r.send(frame{tPing, 0, 0, u64(1 << 40)})
	g.waitBlocked()
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// Bytes that a stream has queued for a writer go before those it writes itself later,
// even if so many streams have queued bytes that one round does not reach them.
func TestSmallMessagesKeepTheirPlace(t *testing.T) {
	noLeaks(t)
	near, far := tcpPair(t)
	g := newGate(near)
	r := newRig(t, g, far, true, link.Config{})
	defer r.end()
	var crowd []tunnel.Conn
	for range 40 {
		_, conn := r.dialed()
		crowd = append(crowd, conn)
	}
	id, conn := r.dialed()

	r.plug(g)
	for _, c := range crowd {
		if _, err := c.Write(make([]byte, 4<<10)); err != nil {
			t.Fatal(err)
		}
	}
	first, second := bytes.Repeat([]byte{'a'}, 100), bytes.Repeat([]byte{'b'}, 30000)
	if _, err := conn.Write(first); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { _, err := conn.Write(second); written <- err }()
	time.Sleep(20 * time.Millisecond) // let it queue for its turn
	g.set(false)

	want := append(first, second...)
	var got []byte
	for len(got) < len(want) {
		if f := r.next(); f.typ == tData && f.id == id {
			got = append(got, f.payload...)
		}
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("the stream's bytes came out of order: %q...", got[:10])
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// talker is a destination that speaks first, and much.
type talker struct {
	*loop
	said int
}

func (c *talker) Read(p []byte) (int, error) {
	if c.said < 2 { // first a probe's worth, then a full chunk
		c.said++
		return len(p), nil
	}
	return c.loop.Read(p)
}

func TestOpenedGoesBeforeData(t *testing.T) {
	noLeaks(t)
	near, far := tcpPair(t)
	g := newGate(near)
	talk := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		return tunnel.Wrap(&talker{loop: newLoop()}), nil
	})
	r := newRig(t, g, far, true, link.Config{Forwarder: &tunnel.Forwarder{Dialer: talk}})
	defer r.end()
	var crowd []tunnel.Conn
	for range 40 {
		_, conn := r.dialed()
		crowd = append(crowd, conn)
	}
	r.plug(g)
	for _, c := range crowd {
		if _, err := c.Write(make([]byte, 4<<10)); err != nil {
			t.Fatal(err)
		}
	}
	r.send(openFrame(2, "talk:1"), openFrame(4, "talk:1"))
	eventually(t, "streams", func() bool { return r.ses.Stats().Accepted == 2 })
	time.Sleep(20 * time.Millisecond) // let the relays queue for their turns
	g.set(false)

	opened := map[uint64]bool{}
	for data := 0; data < 2; {
		switch f := r.next(); {
		case f.typ == tOpened:
			opened[f.id] = true
		case f.typ == tData && f.id%2 == 0:
			if !opened[f.id] {
				t.Fatalf("DATA before OPENED on stream %d", f.id)
			}
			data++
		}
	}
}

// A Write in progress when the connection breaks returns the loss of the link, like any
// other call, and not the connection's error.
func TestWriterOfABrokenLinkHearsOfTheLoss(t *testing.T) {
	noLeaks(t)
	near, far := tcpPair(t)
	g := newGate(near)
	r := newRig(t, g, far, true, link.Config{})
	_, conn := r.dialed()
	g.set(true)
	written := make(chan error, 1)
	go func() { _, err := conn.Write(make([]byte, 50000)); written <- err }()
	g.waitBlocked()
	_ = g.Close()
	if err := <-written; tunnel.CodeOf(err) != tunnel.CodeLost {
		t.Errorf("the write failed with %v", err)
	}
	_ = far.Close()
	r.end()
}

// hooked is a net.Conn that calls hook before each Write, with how many there
// were since it was set.
type hooked struct {
	net.Conn
	hook   func(n int) // called by the writer
	writes int
}

func (h *hooked) Write(p []byte) (int, error) {
	if h.hook != nil {
		h.writes++
		h.hook(h.writes)
	}
	return h.Conn.Write(p)
}

// A stream that queues for its turn during the last round of the writer before it gets the
// turn nevertheless.
func TestTurnAfterTheLastRound(t *testing.T) {
	noLeaks(t)
	near, far := tcpPair(t)
	h := &hooked{Conn: near}
	r := newRig(t, h, far, true, link.Config{PingInterval: time.Hour, DeadAfter: time.Hour})
	defer r.end()
	_, first := r.dialed()
	_, small := r.dialed()
	id, last := r.dialed()
	r.wantNothing() // the first PING is behind us

	const frames, rounds = 2, 4
	written := make(chan error, 1)
	h.hook = func(n int) {
		switch {
		case n >= frames && n < frames+rounds:
			if _, err := small.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		case n == frames+rounds:
			go func() { _, err := last.Write(make([]byte, 30000)); written <- err }()
			time.Sleep(20 * time.Millisecond) // let it queue for its turn
		}
	}
	if _, err := first.Write(make([]byte, 30000)); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < 30000; {
		if f := r.next(); f.typ == tData && f.id == id {
			got += len(f.payload)
		}
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}
