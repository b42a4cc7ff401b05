package frontend

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/admission"
)

// oneTurn lets one handshake compute at a time.
func oneTurn(c *Config) {
	c.Strangers = &Strangers{admission.NewSlots[*Conn](admission.Limits{}), admission.NewTurns(1)}
}

// However many handshakes there are, they compute in turns.
func TestHandshakesComputeInTurns(t *testing.T) {
	var now, most atomic.Int64
	slow := func(c *Config) {
		config := c.TLS
		c.TLS = func(protos ...string) *tls.Config {
			out := config(protos...)
			out.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(2 * time.Millisecond) // computes
				now.Add(-1)
				return nil, nil
			}
			return out
		}
	}
	r := start(t, "tcp", true, connecting(echo("")), oneTurn, slow)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { r.dial("http/1.1").Close() })
	}
	all.Wait()
	if n := most.Load(); n != 1 {
		t.Errorf("%d handshakes computed at once", n)
	}
}

// stuckConn is to a peer that takes nothing.
type stuckConn struct {
	net.Conn
	writes chan<- struct{}
	end    chan struct{}
	once   sync.Once
}

func (c *stuckConn) Write([]byte) (int, error) {
	c.writes <- struct{}{}
	<-c.end
	return 0, net.ErrClosed
}

func (c *stuckConn) Close() error {
	c.once.Do(func() { close(c.end) })
	return c.Conn.Close()
}

// stuckListener's connections are stuck.
type stuckListener struct {
	net.Listener
	writes chan<- struct{}
}

func (l stuckListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stuckConn{Conn: c, writes: l.writes, end: make(chan struct{})}, nil
}

// A peer that does not read what its handshake sends keeps its turn from nobody.
func TestAStuckHandshakeKeepsNoTurn(t *testing.T) {
	r := start(t, "tcp", true, connecting(echo("")), oneTurn)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	writes, served := make(chan struct{}, 2), make(chan error, 1)
	go func() { served <- r.Serve(ctx, stuckListener{l, writes}) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var client sync.WaitGroup
	defer client.Wait()
	defer c.Close()
	client.Go(func() { _ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake() })
	<-writes
	r.dial("http/1.1").Close()
}
