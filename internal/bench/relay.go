package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"time"
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

// Hop is one process of the relay chain.
type Hop struct {
	Next   string      // HOST:PORT to pass on to; "" is the end of the chain, which dials the target
	Config *tls.Config // for Next
}

// Serve relays connections of l until ctx ends. It then closes those that are open
// and returns when all have ended.
func (h Hop) Serve(ctx context.Context, l net.Listener) error {
	return Accept(ctx, l, func(c net.Conn) { _ = h.relay(ctx, c) })
}

func (h Hop) relay(ctx context.Context, near net.Conn) error {
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
func (h Hop) dial(ctx context.Context, target string) (net.Conn, error) {
	if h.Next == "" {
		return new(net.Dialer).DialContext(ctx, "tcp", target)
	}
	c, err := (&tls.Dialer{Config: h.Config}).DialContext(ctx, "tcp", h.Next)
	if err != nil {
		return nil, err
	}
	if err := AskHop(c, target); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// AskHop asks the hop at the other end of c for a target, which is host:port.
func AskHop(c net.Conn, target string) error {
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
