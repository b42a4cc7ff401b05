package via

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Answer describes the program at an address.
type Answer struct {
	Kind Protocol
	Who  string // for a sentence like "... answers there"
	Err  error  // of NoAnswer: why there is no connection, although a program may listen
}

// Protocol is that of a port.
type Protocol int

const (
	NoAnswer      Protocol = iota // no program listens, or no connection is possible
	UnknownAnswer                 // a program answers in no known protocol
	SpeaksSOCKS5
	SpeaksHTTP
	SpeaksTLS
	SpeaksOther // a known protocol, which no path uses
)

// probeTime bounds one probe of a port, which a program answers without asking others.
const probeTime = time.Second

// Network is the network of an address: host:port, or the path of a unix socket.
func Network(at string) string {
	if filepath.IsAbs(at) {
		return "unix"
	}
	return "tcp"
}

// Identify probes an address (as for Network) in several protocols, over a connection
// each, until one is answered. It takes at most three times probeTime.
func Identify(ctx context.Context, at string) Answer {
	// SOCKS5 comes first, since its port may serve HTTP too; HTTP last, since TLS
	// servers often answer it in plain text.
	first, err := ask(ctx, at, "\x05\x02\x00\x02") // RFC 1928 §3: no authentication, or a password
	switch {
	case err != nil:
		return unreachable(err)
	case len(first) >= 2 && first[0] == 5:
		return Answer{Kind: SpeaksSOCKS5, Who: "a SOCKS5 proxy"}
	case bytes.HasPrefix(first, []byte("SSH-")):
		return Answer{Kind: SpeaksOther, Who: "an SSH server"}
	}
	if s, ok := identifyTLS(ctx, at); ok {
		return s
	}
	second, _ := ask(ctx, at, "HEAD / HTTP/1.1\r\nHost: check\r\nConnection: close\r\n\r\n")
	switch {
	case bytes.HasPrefix(second, []byte("HTTP/1.")):
		return Answer{Kind: SpeaksHTTP, Who: "an HTTP server" + serverHeader(second)}
	case len(first)+len(second) == 0:
		return Answer{Kind: UnknownAnswer, Who: "a program that says nothing to SOCKS5, TLS and HTTP"}
	default:
		return Answer{Kind: SpeaksOther, Who: fmt.Sprintf("a program that says %.30q", append(first, second...))}
	}
}

// unreachable is the answer where no connection is possible.
func unreachable(err error) Answer {
	a := Answer{Who: "nobody"}
	var op *net.OpError
	switch {
	case errors.Is(err, fs.ErrNotExist), tunnel.FailureOf(err) == tunnel.FailRefused:
	case errors.As(err, &op):
		a.Err = op.Err // without repeating the address
	default:
		a.Err = err
	}
	return a
}

// maxAnswer bounds the bytes read of an answer: a status line and the usual headers.
const maxAnswer = 1 << 10

// ask sends text and returns the beginning of the answer, which is empty for a program
// that says nothing. The error means that there is no connection.
func ask(ctx context.Context, at, what string) (answer []byte, err error) {
	conn, err := dialProbe(ctx, at)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, what); err != nil {
		return nil, nil
	}
	answer = make([]byte, maxAnswer)
	n, _ := io.ReadAtLeast(conn, answer, 2)
	return answer[:n], nil
}

func dialProbe(ctx context.Context, at string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, Network(at), at)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(probeTime))
	}
	return conn, err
}

// identifyTLS begins a handshake. A server that requires a client certificate shows its own
// first.
func identifyTLS(ctx context.Context, at string) (Answer, bool) {
	conn, err := dialProbe(ctx, at)
	if err != nil {
		return Answer{}, false
	}
	defer conn.Close()
	shown := ""
	client := tls.Client(conn, &tls.Config{
		NextProtos: []string{link.ALPN, "h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // nothing is sent
		VerifyConnection: func(state tls.ConnectionState) error {
			shown = " (certificate of " + pki.Name(state.PeerCertificates[0]) + ")"
			return nil
		},
	})
	err = client.HandshakeContext(ctx)
	if _, alerted := tlsreload.AlertOf(err); err == nil || shown != "" || alerted {
		return Answer{Kind: SpeaksTLS, Who: "a TLS server" + shown}, true
	}
	return Answer{}, false
}

// serverHeader is the Server header of an answer.
func serverHeader(answer []byte) string {
	for line := range strings.Lines(string(answer)) {
		if key, value, ok := strings.Cut(line, ":"); ok && http.CanonicalHeaderKey(key) == "Server" {
			return fmt.Sprintf(" (%.40s)", strings.TrimSpace(value))
		}
	}
	return ""
}

// Not reports whether the program is known to speak another protocol than want.
func (s Answer) Not(want Protocol) bool {
	return s.Kind != want && s.Kind != NoAnswer && s.Kind != UnknownAnswer
}
