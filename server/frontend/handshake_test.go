package frontend

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// oneTurn lets one handshake compute at a time.
func oneTurn(c *Config) {
	c.PreAuth = newPreAuth(admission.Limits{}, 1)
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
	testutil.Equal(t, most.Load(), 1, "handshakes computed at once")
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
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	writes, served := make(chan struct{}, 2), make(chan error, 1)
	beside := testutil.Must(New(r.cfg))(t) // with the same PreAuth
	go func() { served <- beside.Serve(ctx, stuckListener{l, writes}) }()
	defer func() {
		cancel()
		testutil.Succeeds(t, <-served, "Serve")
	}()
	c := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	var client sync.WaitGroup
	defer client.Wait()
	defer c.Close()
	client.Go(func() { _ = tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake() })
	<-writes
	r.dial("http/1.1").Close()
}

// Of hundreds that come at once all wait in line, and none has to go: as long
// as it is not its turn, a peer costs no more than one that is silent.
func TestQueuedHandshakesWeighLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := testutil.Must(pki.NewCA("ca"))(t)
		pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "s", DNS: []string{"localhost"}, Server: true}))(t)
		gate := make(chan struct{})
		cfg := Config{Name: "clients", Metrics: &counter{}, Log: logging.Silent(), Connect: func(context.Context, *Conn) {}}
		oneTurn(&cfg)
		cfg.TLS = func(protos ...string) *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, NextProtos: protos, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				<-gate // computes
				return nil, nil
			}}
		}
		f := testutil.Must(New(cfg))(t)
		const crowd = 300
		var served, peers sync.WaitGroup
		for range crowd {
			near, far := net.Pipe()
			f.take(t.Context(), near, &served)
			peers.Go(func() {
				defer far.Close()
				err := tls.Client(far, &tls.Config{ServerName: "localhost", RootCAs: ca.Pool()}).Handshake()
				testutil.Holds(t, err == nil, "%v", err)
			})
		}
		synctest.Wait() // until one computes, and all others wait
		if n, bytes := f.cfg.PreAuth.Held(); n != crowd || bytes > crowd*silentWeight+2*tlsWeight {
			t.Errorf("%d wait and weigh %d bytes, %d each", n, bytes, bytes/int64(n))
		}
		close(gate)
		peers.Wait()
		served.Wait()
	})
}
