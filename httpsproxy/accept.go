package httpsproxy

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

const (
	minBackoff = 5 * time.Millisecond // after a first failed accept
	maxBackoff = time.Second          // so that a freed descriptor is used soon
)

// survivable are the errors of accept(2) that pass: the process or the machine
// is short of something, or that one connection was gone before it was taken.
var survivable = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EPROTO, syscall.EPERM,
	syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENONET,
}

// accept hands every connection to start, until ctx or ln ends. nil means that
// ctx ended.
func (s *Server) accept(ctx context.Context, ln net.Listener, start func(tunnel.Conn)) error {
	var backoff time.Duration
	var warned time.Time
	for {
		conn, err := ln.Accept()
		if err == nil {
			backoff = 0
			start(tunnel.Wrap(conn))
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if !isSurvivable(err) {
			return err
		}
		if time.Since(warned) > warnEvery {
			warned = time.Now()
			s.opts.Log.WithError(err).Warn("Cannot accept HTTP proxy connections for the moment; trying again")
		}
		s.slots.makeRoom() // its descriptor may be what is missing
		backoff = min(max(2*backoff, minBackoff), maxBackoff)
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return nil
		}
	}
}

func isSurvivable(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(survivable, errno)
}
