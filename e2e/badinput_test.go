package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// handshakeBound is the time every client has to say what it wants.
const handshakeBound = 10 * time.Second

// port is one that somebody serves.
type port struct {
	name, network, address string
	tls                    *tls.Config // of a client that gets further; nil: no TLS
}

func (w *whole) ports(t *testing.T, healthOfSOCKS5 string) []port {
	config := w.clientTLS(t)
	return []port{
		{"clients", "tcp", suite.Loopback(w.server.ClientPort), config},
		{"clients by unix socket", "unix", w.server.UDS, nil},
		{"agents", "tcp", suite.Loopback(w.server.AgentPort), nil},
		{"server's health", "tcp", suite.Loopback(w.server.HealthPort), nil},
		{"server's admin", "tcp", suite.Loopback(w.server.AdminPort), nil},
		{"agent's health", "tcp", suite.Loopback(w.agent.HealthPort), nil},
		{"agent's admin", "tcp", suite.Loopback(w.agent.AdminPort), nil},
		{"SOCKS5", "tcp", w.socks.Address(), nil},
		{"sidecar's health", "tcp", healthOfSOCKS5, nil},
		{"HTTPS", "tcp", w.https.Address(), nil},
	}
}

// beginnings are what clients say before they fall silent.
var beginnings = map[string]string{
	"nothing":          "",
	"garbage":          "\x00\xff\xfe\x01garbage\x80\x00\x00",
	"half of CONNECT":  "CONNECT 127.0.0.1:80 HT",
	"half of a header": "GET / HTTP/1.1\r\nHost: x\r\nX-Half",
	"half of SOCKS5":   "\x05\x01",
	"a greeting":       "\x05\x01\x00",
	"half of TLS":      "\x16\x03\x01\x02\x00\x01\x00",
	"half of HTTP/2":   "PRI * HTTP/2.0\r\n\r\nSM",
}

// Silent, garbage and half-open clients on every port of every program are
// closed within the bound, others are served meanwhile, nothing is left.
func TestBadClientsAreClosedAndHarmNobody(t *testing.T) {
	t.Parallel() // most of it is waiting for the bound
	f := newFleet(t, 1, flags{})
	w := f.whole()
	target := testutil.Echo(t)
	routes := w.routes(t)
	for _, r := range routes {
		testutil.NoError(t, echoOnce(r, target).err)
	}
	base := f.rests()

	ctx, cancel := context.WithCancel(t.Context())
	var healthy sync.WaitGroup
	for _, r := range routes {
		healthy.Go(func() {
			for ctx.Err() == nil {
				took := stopwatch(w.Suite)
				if o := echoOnce(r, target); o.err != nil || min(o.took, took()) > handshakeBound*3/4 {
					t.Errorf("%s beside bad clients: %v after %v", r.name, o.err, o.took)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	var bad sync.WaitGroup
	for _, p := range w.ports(t, f.health["socks5"]) {
		for name, text := range beginnings {
			for range 3 {
				bad.Go(func() { beBad(t, p, name, text, false) })
			}
			if p.tls != nil {
				bad.Go(func() { beBad(t, p, name+" inside TLS", text, true) })
			}
		}
	}
	bad.Wait()
	cancel()
	healthy.Wait()
	f.settles(base)
}

// beBad says text and waits for the end.
func beBad(t *testing.T, p port, name, text string, inTLS bool) {
	start := time.Now()
	c, err := net.DialTimeout(p.network, p.address, patience)
	if err != nil {
		t.Errorf("%s: %v", p.name, err)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(start.Add(handshakeBound + slack))
	if inTLS {
		c = tls.Client(c, p.tls)
	}
	_, _ = io.WriteString(c, text)
	if _, err := io.Copy(io.Discard, c); isTimeout(err) {
		t.Errorf("%s: a client that says %s is still there after %v", p.name, name, time.Since(start))
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
