package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"konnectivity/internal/bench"
	"konnectivity/internal/resources"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/wait"
)

// The relay chain is a baseline: three processes that relay each connection by
// itself over two mTLS hops, as the suite does, and multiplex nothing. Each
// connection pays two TLS handshakes, and its bytes are copied 64 KiB at a time.
//
//	front ── mTLS ──► middle ── mTLS ──► end ── TCP ──► target
//
// A client, and each hop, asks the next hop for the target by one line.
const (
	relayBuffer    = 64 << 10
	relayHandshake = 10 * time.Second
	relayLine      = 512 // bytes of host:port and a newline
)

// hopCommand makes the program one process of it: bench hop ROLE PKI LISTEN NEXT. ROLE is front,
// middle or end, PKI a folder of konnectivity certs, and LISTEN and NEXT are HOST:PORT.
const hopCommand = "hop"

// benchHop is `bench hop`: the process itself, with the memory settings of the suite's programs.
func benchHop(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("bench hop: want ROLE PKI LISTEN NEXT, got %q", args)
	}
	role, pki, listen, next := args[0], args[1], args[2], args[3]
	resources.SetMemoryLimit(os.DirFS("/"), os.Getenv)
	h := hop{next: next}
	if role != "end" {
		certificate, err := source(pki, "client")
		if err != nil {
			return err
		}
		host, _, _ := net.SplitHostPort(next)
		h.config = fullHandshakes(certificate, host)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if role != "front" {
		certificate, err := source(pki, "server")
		if err != nil {
			return err
		}
		l = tls.NewListener(l, certificate.Server())
	}
	released := wait.Go(func() { resources.ReleaseIdle(ctx) })
	defer func() { <-released }()
	return h.serve(ctx, l)
}

// source loads a certificate from a folder of konnectivity certs.
func source(pki, name string) (*tlsreload.Source, error) {
	return tlsreload.New(tlsreload.FilesIn(pki, name), tlsreload.Options{Name: name})
}

// fullHandshakes is the configuration of a client that makes a full handshake for each connection,
// as such chains do for each hop.
func fullHandshakes(certificate *tlsreload.Source, host string) *tls.Config {
	config := certificate.Client(host)
	config.ClientSessionCache = nil
	return config
}

// hop is one process of the relay chain.
type hop struct {
	next   string      // HOST:PORT to pass on to; "" is the end of the chain, which dials the target
	config *tls.Config // for next
}

// serve relays connections of l until ctx ends. It then closes those that are open
// and returns when all have ended.
func (h hop) serve(ctx context.Context, l net.Listener) error {
	return bench.Accept(ctx, l, func(c net.Conn) { _ = h.relay(ctx, c) })
}

func (h hop) relay(ctx context.Context, near net.Conn) error {
	_ = near.SetDeadline(time.Now().Add(relayHandshake))
	r := bufio.NewReaderSize(near, relayLine)
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	_ = near.SetDeadline(time.Time{})
	far, err := h.dial(ctx, strings.TrimSpace(string(line)))
	if err != nil {
		return err
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _ = far.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { copyHalf(near, far) })
	// Bytes that were read with the line go first.
	if n := r.Buffered(); n > 0 {
		ahead, _ := r.Peek(n)
		if _, err := far.Write(ahead); err != nil {
			return err
		}
	}
	copyHalf(far, near)
	wg.Wait()
	return nil
}

// dial opens a TLS connection of its own to the next hop.
func (h hop) dial(ctx context.Context, target string) (net.Conn, error) {
	if h.next == "" {
		return new(net.Dialer).DialContext(ctx, "tcp", target)
	}
	c, err := (&tls.Dialer{Config: h.config}).DialContext(ctx, "tcp", h.next)
	if err != nil {
		return nil, err
	}
	if err := askHop(c, target); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// askHop asks the hop at the other end of c for a target, which is host:port.
func askHop(c net.Conn, target string) error {
	_, err := io.WriteString(c, target+"\n")
	return err
}

func copyHalf(dst, src net.Conn) {
	buf := make([]byte, relayBuffer)
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf)
	if err != nil {
		_ = dst.Close()
		_ = src.Close()
		return
	}
	_ = dst.(interface{ CloseWrite() error }).CloseWrite()
}
