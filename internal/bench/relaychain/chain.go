// Package relaychain is a baseline: three processes that relay each connection
// by itself over the same two mTLS hops as the suite's SOCKS5 path, and
// multiplex nothing. Each connection pays two TLS handshakes, and its bytes are
// copied by 64 KiB.
//
//	front (SOCKS5) ── mTLS ──► middle ── mTLS ──► end ── TCP ──► target
package relaychain

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"konnectivity/internal/bench"
)

const (
	copyBuffer    = 64 << 10
	handshakeTime = 10 * time.Second
	maxLine       = 512 // host:port and a newline
)

// Hop is one process of the chain.
type Hop struct {
	// Greet reads the destination from an accepted connection.
	greet func(net.Conn, *bufio.Reader) (address string, err error)
	// Dial dials the next hop.
	dial func(ctx context.Context, address string) (net.Conn, error)
}

// Front speaks SOCKS5 and passes on to next over TLS.
func Front(next string, config *tls.Config) Hop {
	return Hop{greet: greetSOCKS5, dial: dialNext(next, config)}
}

// Middle passes on to next over TLS.
func Middle(next string, config *tls.Config) Hop {
	return Hop{greet: greetLine, dial: dialNext(next, config)}
}

// End dials the target.
func End() Hop {
	return Hop{greet: greetLine, dial: func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}}
}

// Serve accepts from l until ctx ends, then closes what is open and returns
// when every connection has ended.
func (h Hop) Serve(ctx context.Context, l net.Listener) error {
	return bench.Accept(ctx, l, func(c net.Conn) { _ = h.relay(ctx, c) })
}

func (h Hop) relay(ctx context.Context, near net.Conn) error {
	_ = near.SetDeadline(time.Now().Add(handshakeTime))
	r := bufio.NewReaderSize(near, maxLine)
	address, err := h.greet(near, r)
	if err != nil {
		return err
	}
	_ = near.SetDeadline(time.Time{})
	far, err := h.dial(ctx, address)
	if err != nil {
		return err
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _ = far.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { copyHalf(near, far) })
	// What the greeting's buffer already holds goes first.
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

func copyHalf(dst, src net.Conn) {
	buf := make([]byte, copyBuffer)
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf)
	if err != nil {
		_ = dst.Close()
		_ = src.Close()
		return
	}
	_ = dst.(interface{ CloseWrite() error }).CloseWrite()
}

// dialNext opens a new TLS connection for each connection, and sends the next
// hop the address in one line.
func dialNext(next string, config *tls.Config) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		d := tls.Dialer{Config: config}
		c, err := d.DialContext(ctx, "tcp", next)
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(c, address+"\n"); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

func greetLine(_ net.Conn, r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	return strings.TrimSpace(string(line)), err
}

var errSOCKS = errors.New("not a SOCKS5 CONNECT without authentication")

// greetSOCKS5 is as much of RFC 1928 as a benchmark needs. It answers before
// the next hops have dialed, which flatters the chain a little.
func greetSOCKS5(c net.Conn, r *bufio.Reader) (string, error) {
	var b [262]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return "", err
	}
	if b[0] != 5 {
		return "", errSOCKS
	}
	if _, err := io.ReadFull(r, b[:b[1]]); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte{5, 0}); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(r, b[:4]); err != nil {
		return "", err
	}
	host, err := socksHost(r, b[3])
	if err != nil {
		return "", err
	}
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return "", err
	}
	port := int(b[0])<<8 | int(b[1])
	_, err = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return net.JoinHostPort(host, fmt.Sprint(port)), err
}

func socksHost(r *bufio.Reader, kind byte) (string, error) {
	size := map[byte]int{1: net.IPv4len, 4: net.IPv6len}[kind]
	if kind == 3 {
		n, err := r.ReadByte()
		if err != nil {
			return "", err
		}
		size = int(n)
	}
	if size == 0 {
		return "", errSOCKS
	}
	b := make([]byte, size)
	_, err := io.ReadFull(r, b)
	if kind == 3 {
		return string(b), err
	}
	return net.IP(b).String(), err
}
