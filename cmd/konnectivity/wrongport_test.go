package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

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
			if status != 1 || !strings.Contains(stderr, c.says) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%d %q, want %q", status, stderr, c.says)
			}
			if took := time.Since(start); took > time.Minute { // half a second to four, on an idle machine
				t.Errorf("it took %v", took)
			}
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
	if status != 0 || out != "hello" {
		t.Errorf("%d %q %q", status, out, stderr)
	}
}
