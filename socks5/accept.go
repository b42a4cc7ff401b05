package socks5

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

// accept hands every connection that gets a slot to serve, until ctx or ln
// ends. nil means that ctx ended.
func (s *Server) accept(ctx context.Context, ln net.Listener, serve func(*client)) error {
	var backoff time.Duration
	var warned time.Time
	for {
		conn, err := ln.Accept()
		if err == nil {
			backoff = 0
			if c := s.admit(tunnel.Wrap(conn)); c != nil {
				serve(c)
			}
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
			s.opts.Log.WithError(err).Warn("Cannot accept SOCKS5 connections for the moment; trying again")
		}
		if s.slots.makeRoom() { // a descriptor may be what is missing
			backoff = 0
		}
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
