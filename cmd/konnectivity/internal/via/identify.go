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
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Answer is what answers at an address, as far as a stranger can find out.
type Answer struct {
	Kind Protocol
	Who  string // in words, for a sentence like "... answers there"
	Err  error  // of Nothing: why nobody could be asked, where somebody may listen
}

// Protocol is what a port speaks.
type Protocol int

const (
	NoAnswer      Protocol = iota // nobody listens, or can be asked
	UnknownAnswer                 // somebody does, and says nothing that we know
	SpeaksSOCKS5
	SpeaksHTTP
	SpeaksTLS
	SpeaksOther // something that we know it not to be
)

// frontTime bounds one question to a port; a program answers it by itself, from
// its own memory.
const frontTime = time.Second

// Network is that of an address, which is host:port or the path of a unix socket.
func Network(at string) string {
	if filepath.IsAbs(at) {
		return "unix"
	}
	return "tcp"
}

// At asks at an address (as of Network) in several protocols, over a connection
// each, until one answers in kind. It takes at most three times frontTime.
func Identify(ctx context.Context, at string) Answer {
	// SOCKS5 comes first, since a port that serves it may serve HTTP, too; HTTP
	// last, since TLS servers often answer it with a complaint in plain text.
	first, err := ask(ctx, at, "\x05\x02\x00\x02") // RFC 1928 §3: no authentication, or a password
	switch {
	case err != nil:
		return unasked(err)
	case len(first) >= 2 && first[0] == 5:
		return Answer{Kind: SpeaksSOCKS5, Who: "a SOCKS5 proxy"}
	case bytes.HasPrefix(first, []byte("SSH-")):
		return Answer{Kind: SpeaksOther, Who: "an SSH server"}
	}
	if s, ok := asTLS(ctx, at); ok {
		return s
	}
	second, _ := ask(ctx, at, "HEAD / HTTP/1.1\r\nHost: check\r\nConnection: close\r\n\r\n")
	switch {
	case bytes.HasPrefix(second, []byte("HTTP/1.")):
		return Answer{Kind: SpeaksHTTP, Who: "an HTTP server" + nameOfServer(second)}
	case len(first)+len(second) == 0:
		return Answer{Kind: UnknownAnswer, Who: "a program that says nothing to SOCKS5, TLS and HTTP"}
	default:
		return Answer{Kind: SpeaksOther, Who: fmt.Sprintf("a program that says %.30q", append(first, second...))}
	}
}

// unasked is what there is where no connection could be made.
func unasked(err error) Answer {
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

// maxAnswered is how much of an answer is looked at: a status line and the
// usual headers.
const maxAnswered = 1 << 10

// ask says something and returns how the answer begins. The error says that there is
// no connection; whoever makes one and says nothing has an empty answer.
func ask(ctx context.Context, at, what string) (answer []byte, err error) {
	conn, err := dialFront(ctx, at)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, what); err != nil {
		return nil, nil
	}
	answer = make([]byte, maxAnswered)
	n, _ := io.ReadAtLeast(conn, answer, 2)
	return answer[:n], nil
}

func dialFront(ctx context.Context, at string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, frontTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, Network(at), at)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(frontTime))
	}
	return conn, err
}

// asTLS begins a handshake; a server that wants a certificate of its client
// shows its own before.
func asTLS(ctx context.Context, at string) (Answer, bool) {
	conn, err := dialFront(ctx, at)
	if err != nil {
		return Answer{}, false
	}
	defer conn.Close()
	shown := ""
	client := tls.Client(conn, &tls.Config{
		NextProtos: []string{link.ALPN, "h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // nothing is sent; it is only asked who it is
		VerifyConnection: func(state tls.ConnectionState) error {
			shown = " (certificate of " + pki.Name(state.PeerCertificates[0]) + ")"
			return nil
		},
	})
	err = client.HandshakeContext(ctx)
	var op *net.OpError
	if err == nil || shown != "" || errors.As(err, &op) && op.Op == "remote error" { // crypto/tls's name for an alert
		return Answer{Kind: SpeaksTLS, Who: "a TLS server" + shown}, true
	}
	return Answer{}, false
}

// nameOfServer is what an HTTP server calls itself.
func nameOfServer(answer []byte) string {
	for line := range strings.Lines(string(answer)) {
		if key, value, ok := strings.Cut(line, ":"); ok && http.CanonicalHeaderKey(key) == "Server" {
			return fmt.Sprintf(" (%.40s)", strings.TrimSpace(value))
		}
	}
	return ""
}

// Not says that it is known to speak something else.
func (s Answer) Not(want Protocol) bool {
	return s.Kind != want && s.Kind != NoAnswer && s.Kind != UnknownAnswer
}
