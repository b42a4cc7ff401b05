package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const (
	// connectTime bounds an attempt, as an agent's.
	connectTime = 15 * time.Second

	// roundTime bounds what is asked of a tenant, a dial or one way of an echo. It is
	// what a busy machine never takes: a dial or an echo fails by an error or wrong
	// bytes, not by being slow.
	roundTime = time.Minute
)

// peer is an agent or a sidecar as the server sees one: a link that is made
// again whenever it is lost.
type peer struct {
	address string
	tls     *tls.Config
	link    link.Config
	from    net.IP
	session atomic.Pointer[link.Session] // nil while there is none
	tried   atomic.Int64                 // attempts that failed
	last    atomic.Pointer[error]        // why, or why the last link ended
}

// run keeps the link until ctx ends. It waits between attempts as agents and
// sidecars do.
func (p *peer) run(ctx context.Context) {
	pause := peers.Backoff{Base: time.Second, Growth: 1.5, Limit: 10 * time.Second}
	for ctx.Err() == nil {
		s, err := p.connect(ctx)
		if err != nil {
			p.tried.Add(1)
			p.last.Store(&err)
			sleep(ctx, pause.Failure())
			continue
		}
		pause.Succeed()
		p.session.Store(s)
		select {
		case <-s.Done():
			why := s.Err()
			p.last.Store(&why)
		case <-ctx.Done():
		}
		p.session.Store(nil)
		_ = s.Close()
		sleep(ctx, peers.Jitter(pause.Base))
	}
}

func (p *peer) connect(ctx context.Context) (*link.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: p.from}}
	raw, err := dialer.DialContext(ctx, "tcp", p.address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(link.Cork(raw), p.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return link.Connect(ctx, conn, p.link)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// errAway is that a peer has no link at the moment.
var errAway = errors.New("there is no link to the server")

// away is errAway and, if it is known, why.
func (p *peer) away() error {
	if why := p.last.Load(); why != nil {
		return fmt.Errorf("%w: %w", errAway, *why)
	}
	return errAway
}

// dial opens a connection by the sidecar's link.
func (p *peer) dial(ctx context.Context, to string) (tunnel.Conn, error) {
	s := p.session.Load()
	if s == nil {
		return nil, p.away()
	}
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	return s.Dial(ctx, tunnel.NewFlow("tcp", to))
}

// What is dialed is the same in all clusters.
const (
	destination = "10.0.0.1:443"
	endlessAt   = "10.0.0.1:80"
)

// greeter is what every cluster has at every address but endlessAt: it says whose
// it is, and then sends back what it gets.
func greeter(name string) tunnel.Dialer {
	return tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		if f.Address == endlessAt {
			return tunnel.Wrap(&endless{Conn: near}), nil
		}
		go func() { // ends with the connection
			defer far.Close()
			if _, err := io.WriteString(far, name+"\n"); err == nil {
				_, _ = io.Copy(far, far)
			}
		}()
		return tunnel.Wrap(near), nil
	})
}

// endless sends and takes all that its reader and writer can, until it is closed.
type endless struct {
	net.Conn // whose other end nobody has
	closed   atomic.Bool
}

func (e *endless) Read(p []byte) (int, error)  { return e.move(p) }
func (e *endless) Write(p []byte) (int, error) { return e.move(p) }

func (e *endless) move(p []byte) (int, error) {
	if e.closed.Load() {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

func (e *endless) Close() error {
	e.closed.Store(true)
	return e.Conn.Close()
}
