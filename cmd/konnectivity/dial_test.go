package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// dial runs konnectivity dial with input.
func dial(input io.Reader, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	root := newRoot()
	root.SetIn(input)
	root.SetOut(&out)
	status = cli.Run(root, append([]string{"dial"}, args...), &err, nil)
	return status, out.String(), err.String()
}

// lastWord is a destination that answers only once its input has ended, with
// how long that was.
func (l *lab) lastWord() (address string) {
	return testutil.Serve(l.t, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		_, _ = io.WriteString(c, "got "+status.Bytes(float64(n)))
	})
}

func (l *lab) tlsArgs() []string {
	return []string{"--ca-cert-path=" + l.file("ca.crt"), "--tls-cert-path=" + l.file("tls.crt"), "--tls-key-path=" + l.file("tls.key")}
}

func TestDialHalfClose(t *testing.T) {
	l := newLab(t)
	l.start()
	address := l.lastWord()
	for _, way := range []string{"direct", "https://" + l.clients, "link://" + l.clients} {
		args := append(l.tlsArgs(), "--via="+way, address)
		status, out, stderr := dial(strings.NewReader(strings.Repeat("x", 1<<20)), args...)
		testutil.Holds(t, status == 0 && out == "got 1.0 MB" && stderr == "", "%s: %d %q %q", way, status, out, stderr)
	}
}

func TestDialServerName(t *testing.T) {
	l := newLab(t)
	l.leaf.IPs, l.leaf.DNS = nil, []string{"cluster-a.example.com"}
	l.start()
	for name, want := range map[string]int{"": 1, "cluster-b.example.com": 1, "cluster-a.example.com": 0, "10.0.0.1": 2} {
		for _, way := range []string{"https://", "link://"} {
			args := append(l.tlsArgs(), "--via="+way+l.clients, "--server-name="+name, l.target)
			status, _, stderr := dial(strings.NewReader(""), args...)
			testutil.Holds(t, status == want, "%s, asked for %q: %d %q", way, name, status, stderr)
		}
	}
}

// kube-apiserver's way has no half-close; the far end ends by itself.
func TestDialByGRPC(t *testing.T) {
	l := newLab(t)
	l.start()
	target := testutil.Serve(t, func(c *net.TCPConn) {
		word := make([]byte, 5)
		_, _ = io.ReadFull(c, word)
		_, _ = io.WriteString(c, "got "+string(word))
	})
	status, out, stderr := dial(strings.NewReader("hello"), "--via=grpc://"+l.file("uds"), target)
	testutil.Holds(t, status == 0 && out == "got hello" && stderr == "", "%d %q %q", status, out, stderr)
	status, _, stderr = dial(strings.NewReader(""), "--via=grpc://"+l.file("uds"), "-v", l.closed)
	testutil.Holds(t, status == 1 && strings.Contains(stderr, "connection refused") &&
		strings.Contains(stderr, "nothing listens"), "%d %q", status, stderr)
}

// socketOf is a unix socket that leads to a port.
func (l *lab) socketOf(port net.Listener) string {
	path := filepath.Join(l.t.TempDir(), "s")
	ln := testutil.Must(net.Listen("unix", path))(l.t)
	testutil.Start(l.t, func(ctx context.Context) {
		var conns sync.WaitGroup
		defer conns.Wait()
		defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				if far, err := net.Dial("tcp", port.Addr().String()); err == nil {
					_ = (&tunnel.Relay{A: tunnel.Wrap(near), B: tunnel.Wrap(far)}).Run(ctx)
				}
				_ = near.Close()
			})
		}
	})
	return path
}

// A destination that ends first ends the dial, even while the input is open.
func TestDialEndsWithDestination(t *testing.T) {
	input, w := io.Pipe()
	defer w.Close()
	target := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5)) // so that it is open
		_ = c.SetLinger(0)                     // reset
	})
	ended := make(chan int, 1)
	go func() {
		status, _, _ := dial(input, "--via=direct", target)
		ended <- status
	}()
	_, _ = io.WriteString(w, "hello")
	testutil.Equal(t, testutil.Receive(t, "the end, though more input may come", ended), 1, "status after a reset")
}

func TestDialVerbose(t *testing.T) {
	l := newLab(t)
	l.start()
	l.waitMeasured()
	args := append(l.tlsArgs(), "--via=link://"+l.clients, "-v", "--server-admin="+l.admin, l.lastWord())
	status, _, stderr := dial(strings.NewReader("hello"), args...)
	for _, want := range []string{"connection ", "connected in ", "server server-1 (konnectivity-server ", "agent agent-1 at 127.0.0.1:", "over link, round trip from the server ", "sent 5 B, received 7 B"} {
		testutil.Holds(t, status == 0 && strings.Contains(stderr, want), "%d, no %q in\n%s", status, want, stderr)
	}
}

// The words of -v begin a line of their own, whether or not the answer ends its last.
func TestDialSaysTheEndOnALineOfItsOwn(t *testing.T) {
	for answer, want := range map[string]string{"": "s\nended after ", "answer": "s\n\nended after ", "answer\n": "s\nended after "} {
		target := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, answer) })
		status, out, stderr := dial(strings.NewReader(""), "--via=direct", "-v", target)
		testutil.Holds(t, status == 0 && out == answer && strings.Contains(stderr, want),
			"%q: %d %q %q", answer, status, out, stderr)
	}
}

func TestDialSaysThatASocketIsMissing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, way := range []string{"http://", "grpc://"} {
		status, _, stderr := dial(strings.NewReader(""), "--via="+way+missing, "10.0.0.1:443")
		want := "konnectivity: dial " + missing + ": there is no such socket\n"
		testutil.Holds(t, status == 1 && stderr == want, "%s: %d %q, want %q", way, status, stderr, want)
	}
}

// What -v says first is what no later line corrects: it names an id only where a hop learns it,
// and tells what to do about a destination only where it was asked.
func TestDialVerboseSaysNothingUnknown(t *testing.T) {
	refuses := testutil.Serve(t, func(c *net.TCPConn) { // each dial by SOCKS5: nothing listens there
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write([]byte{5, 0})
		_, _ = io.ReadFull(c, make([]byte, 10))
		_, _ = c.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0})
	})
	missing := filepath.Join(t.TempDir(), "missing")
	web := webServer(t, false)
	for way, want := range map[string][]string{
		"socks5://" + refuses: {"connection to 10.0.0.1:9 by socks5://", ": connection refused", "nothing listens on this port. "},
		"grpc://" + missing:   {"connection to 10.0.0.1:9 by grpc://", ": there is no such socket"},
		"http://" + missing:   {"connection ", ": there is no such socket"},
		"socks5://" + web:     {"connection to 10.0.0.1:9 by socks5://", "; if that is an HTTP proxy, use http://"},
	} {
		_, _, stderr := dial(strings.NewReader(""), "--via="+way, "-v", "10.0.0.1:9")
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		lines = lines[:len(lines)-1] // the error, as without -v
		testutil.Equal(t, len(lines), len(want), "lines of\n%s", stderr)
		for i := range min(len(lines), len(want)) {
			testutil.Holds(t, strings.Contains(lines[i], want[i]),
				"%s: no %q in line %d of\n%s", way, want[i], i+1, stderr)
		}
	}
}

// says is a server that sends text first, as SSH servers do, and waits then.
func says(t *testing.T, text string) string {
	return testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, text)
		_, _ = io.Copy(io.Discard, c)
	})
}

func webServer(t *testing.T, secure bool) string {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "shop/1.0")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}))
	if s.Start(); secure {
		s.Close()
		s = httptest.NewTLSServer(http.NotFoundHandler())
	}
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// A wrong port is named as what it is, long before a dial's own bound.
func TestDialIdentifiesWrongPort(t *testing.T) {
	l := newLab(t)
	l.start()
	for name, c := range map[string]struct{ way, says string }{
		"socks5 at the server":     {"socks5://" + l.clients, "use link://" + l.clients},
		"http at the server":       {"http://" + l.clients, "use link://" + l.clients},
		"socks5 at a web server":   {"socks5://" + webServer(t, false), "if that is an HTTP proxy, use http://"},
		"http at a web server":     {"http://" + webServer(t, false), "that is no proxy (it answers 405)"},
		"socks5 at an SSH server":  {"socks5://" + says(t, "SSH-2.0-x\r\n"), "an SSH server answers at"},
		"http at a secure server":  {"http://" + webServer(t, true), "a TLS server (certificate of"},
		"https at the admin port":  {"https://" + l.admin, "TLS"},
		"link at the agents' port": {"link://" + l.agents, "the konnectivity server refuses the link"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			var status int
			var stderr string
			for range 3 { // each probe has a second, which a busy machine may need
				status, _, stderr = dial(strings.NewReader(""), append(l.tlsArgs(), "--via="+c.way, "--timeout=5m", "a.test:1")...)
				if strings.Contains(stderr, c.says) {
					break
				}
			}
			testutil.Holds(t, status == 1 && strings.Contains(stderr, c.says) && strings.Count(stderr, "\n") == 1,
				"%d %q, want %q", status, stderr, c.says)
			// On an idle machine, it takes half a second to four.
			testutil.AtMost(t, time.Since(start), time.Minute, "the time it took")
			t.Log(stderr)
		})
	}
}

// A proxy that takes its time with the greeting is no wrong port.
func TestDialWaitsForSlowGreeting(t *testing.T) {
	t.Parallel() // it waits
	proxy := testutil.Serve(t, func(c *net.TCPConn) {
		hello := make([]byte, 3)
		if _, err := io.ReadFull(c, hello); err != nil {
			return
		}
		time.Sleep(1500 * time.Millisecond) // longer than what a sidecar takes to answer a greeting
		_, _ = c.Write([]byte{5, 0})
		if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
			return
		}
		_, _ = c.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, 0, 1})
		_, _ = io.Copy(c, c)
	})
	status, out, stderr := dial(strings.NewReader("hello"), "--via=socks5://"+proxy, "--timeout=30s", "127.0.0.1:1")
	testutil.Holds(t, status == 0 && out == "hello", "%d %q %q", status, out, stderr)
}
