package fences

import (
	"slices"
	"testing"

	"konnectivity/internal/testutil"
)

// TestTheFencesHold proves that each rule refuses what it is there to refuse.
func TestTheFencesHold(t *testing.T) {
	const ofConns = `import ("net"; "crypto/tls"; "konnectivity/tunnel"); `
	for _, c := range []struct {
		folder, text string
		faults       int
	}{
		{"tunnel", `import "io"`, 0},
		{"tunnel", `import "github.com/sirupsen/logrus"`, 1},
		{"tunnel", `import "konnectivity/tunnel/link"`, 1},
		{"tunnel/link", `import "konnectivity/tunnel"`, 0},
		{"tunnel/link", `import "konnectivity/internal/tlsreload"`, 1},
		{"tunnel/link", `import "google.golang.org/grpc"`, 1},
		{"tunnel/legacy", `import "google.golang.org/grpc"`, 0},
		{"server/registry", `import "konnectivity/server/auth"`, 0},
		{"server", `import "konnectivity/agent"`, 1},
		{"agent/egress", `import "konnectivity/internal/policy"`, 0},
		{"socks5", `import "konnectivity/adapters/resolve"`, 0},
		{"socks5", `import "konnectivity/tunnel"`, 0},
		{"socks5", `import "konnectivity/tunnel/legacy"`, 1},
		{"socks5", `import "konnectivity/httpsproxy"`, 1},
		{"socks5", `import "konnectivity/internal/tlsreload"`, 1},
		{"adapters", `import "konnectivity/cmd/konnectivity"`, 1},
		{"cmd/x", `import "konnectivity/cmd/internal/y"`, 0},
		{"nowhere", `import "io"`, 1},

		{"server", `import "os"; func f() { os.Exit(1) }`, 1},
		{"cmd/x", `import "os"; func f() { os.Exit(1) }`, 0},
		{"server", `import "os"; func f() { os.Getenv("x") }`, 0},
		{"server", `import "log"; func f() { log.Print() }`, 1},
		{"server", `import "log"; func f() { _ = log.New(nil, "", 0) }`, 0},
		{"server", `import "testing"; func f(t *testing.T) { t.Fatal() }`, 0},
		{"server", `import k "k8s.io/klog/v2"; func f() { k.Info() }`, 1},
		{"server", `import "k8s.io/klog/v2"; func f() { klog.Info() }`, 1},
		{"server", `import "github.com/sirupsen/logrus"; func f(l *logrus.Entry) { l.Fatalf("x") }`, 1},
		{"server", `import "github.com/prometheus/client_golang/prometheus"; func f() { prometheus.MustRegister() }`, 1},
		{"server", `import "github.com/prometheus/client_golang/prometheus"; func f(r prometheus.Registerer) { r.MustRegister() }`, 0},
		{"server", `func f() { defer func() { _ = recover() }() }`, 1},
		{"server", `func init() {}`, 1},
		{"server", `type t struct{}; func (t) init() {}`, 0},

		{"server", `func f() { l.Info("serving"); l.Info("TLS fails"); l.Info(text); l.WithField("Key", 1).Info("x") }`, 0},
		{"server", `func f() { l.Info("Serving"); l.Warnf("A peer of %s", x); l.WithError(err).Debug("Cannot " + what) }`, 3},

		{"server", ofConns + `type t struct{ tunnel.Conn }`, 1},
		{"server", ofConns + `type t struct{ conn tunnel.Conn }`, 0},
		{"server", ofConns + `type t struct{ *tls.Conn }`, 0},
		{"server", ofConns + `type t struct{ net.Conn }; func (t) Read(){}`, 0},
		{"server", ofConns + `type t struct{ net.Conn }; func (t) Reset(){}; func (*t) In(){}; func (t) Out(){}`, 1},
		{"server", ofConns + `type raw interface{ net.Conn }; type t struct{ raw }; func (t) Reset(){}; func (t) In(){}; func (t) Out(){}`, 1},
		{"server", ofConns + `type c struct{}; func (*c) Reset(){}; func (*c) In(){}; func (*c) Out(){}; type t struct{ *c }`, 1},
		{"server", ofConns + `type c struct{ tunnel.Conn }; type t struct{ *c }`, 2},
		{"server", ofConns + `type wide interface{ tunnel.Conn; F() }; type t struct{ wide }`, 1},
		{"server", ofConns + `func f() { type t struct{ tunnel.Conn } }`, 1},
	} {
		s := parse(t, c.folder, "x.go", "package x\n"+c.text)
		faults := slices.Concat(importFaults(s), callFaults(s), logFaults(s), embedFaults([]source{s}))
		testutil.Holds(t, len(faults) == c.faults, "%s in %s: %d faults, want %d: %v", c.text, c.folder, len(faults), c.faults, faults)
	}
}
