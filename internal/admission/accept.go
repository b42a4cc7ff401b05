package admission

import (
	"context"
	"net"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

const (
	minBackoff = 5 * time.Millisecond // pause after the first failed accept
	maxBackoff = time.Second          // short, so that a freed descriptor is used soon

	// warnEvery keeps a flood of refused connections from flooding the log too.
	warnEvery = time.Minute
)

// survivable are the errors of accept(2) after which it can be tried again: the
// process or the machine is short of something, or the connection was gone
// before it was accepted.
var survivable = append([]syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EPROTO, syscall.EPERM,
	syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH,
}, survivableHere...)

// Acceptor accepts connections through shortages. One goroutine uses it.
type Acceptor struct {
	What string             // kind of connections, for the log: "SOCKS5 connections"
	Log  logrus.FieldLogger // gets a line about a shortage once a minute

	// MakeRoom is called in a shortage, which may be one of descriptors, and
	// reports whether it freed one. nil frees none.
	MakeRoom func() bool

	warned rarely
}

// Run hands every connection of ln to take, which must not block, until ctx or
// ln ends. nil means that ctx ended. ln is closed, and its port free, once Run returns.
func (a *Acceptor) Run(ctx context.Context, ln net.Listener, take func(net.Conn)) error {
	closed := tunnel.After(ctx, func() { _ = ln.Close() })
	defer func() {
		closed() // a second Close would not wait for the first, which may still have the port
		_ = ln.Close()
	}()
	for {
		conn, err := a.Accept(ctx, ln)
		if err == nil {
			take(conn)
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

// Accept waits for the next connection of ln. It returns an error once ctx or
// ln has ended. The caller closes ln when ctx ends.
func (a *Acceptor) Accept(ctx context.Context, ln net.Listener) (net.Conn, error) {
	for backoff := time.Duration(0); ; {
		conn, err := ln.Accept()
		if err == nil || ctx.Err() != nil || !isSurvivable(err) {
			return conn, err
		}
		if a.warned.due() {
			a.Log.WithError(err).Warn("cannot accept " + a.What + " at the moment; retrying")
		}
		if a.MakeRoom != nil && a.MakeRoom() {
			backoff = 0
		}
		backoff = min(max(2*backoff, minBackoff), maxBackoff)
		if !wait.For(ctx, backoff) {
			return nil, ctx.Err()
		}
	}
}

func isSurvivable(err error) bool { return tunnel.IsErrno(err, survivable...) }

// rarely is when a line that is logged once in warnEvery at most was logged last; zero: never.
type rarely time.Time

// due reports whether the next one may come, and notes that it does.
func (r *rarely) due() bool {
	if time.Since(time.Time(*r)) <= warnEvery {
		return false
	}
	*r = rarely(time.Now())
	return true
}
