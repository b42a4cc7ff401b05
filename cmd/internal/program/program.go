// Package program has what all programs make of the same flags: metrics, certificates that
// rotate, a policy file, and what observes connections.
//
// Server, agent, sidecars and the signer each have a Base, and run its Background.
package program

import (
	"context"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/audit"
	"konnectivity/internal/observe"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/traces"
	"konnectivity/tunnel"
)

// Base is the part of a program that does not depend on what the program is for.
type Base struct {
	Component  string // the program's name
	Log        logrus.FieldLogger
	Registry   *prometheus.Registry
	Observers  []tunnel.Observer       // of all connections
	Background []func(context.Context) // runs beside connections, and while they drain
	Audit      *audit.Log              // nil: none

	opened []net.Listener
}

// New returns a Base with the metrics of any program.
func New(component string, log logrus.FieldLogger) Base {
	return Base{Component: component, Log: log, Registry: observe.NewRegistry(component)}
}

// Certificates loads files and registers their metrics. They are followed.
func (b *Base) Certificates(files tlsreload.Files, o tlsreload.Options) (*tlsreload.Source, error) {
	o.Log = b.Log
	s, err := tlsreload.New(files, o)
	if err != nil {
		return nil, err
	}
	b.Background = append(b.Background, s.Run)
	return s, observe.Certificates(b.Registry, s)
}

// Policy opens --policy-file, which is followed; "" is none. The metrics' names begin with prefix.
func (b *Base) Policy(path, prefix string) (*policyfile.Live, error) {
	if path == "" {
		return nil, nil
	}
	live, err := policyfile.Open(path, prefix, b.Registry, b.Log)
	if err != nil {
		return nil, fmt.Errorf("--policy-file: %w", err)
	}
	b.Background = append(b.Background, live.Run)
	return live, nil
}

// OnReroute has f called whenever an address or a route of this machine has changed.
func (b *Base) OnReroute(f func()) {
	b.Background = append(b.Background, func(ctx context.Context) { followRoutes(ctx, f) })
}

// Record opens --audit-log and the way to the collector of spans, where they are given. name is
// the process's id.
func (b *Base) Record(name, auditLog string, spans traces.Flags) (err error) {
	if auditLog != "" {
		b.Audit, err = audit.Open(audit.Options{Path: auditLog, Component: b.Component, Name: name, Log: b.Log, Registerer: b.Registry})
		if err != nil {
			return err
		}
		b.Observe(b.Audit)
	}
	exporter, err := traces.New(traces.Options{Flags: spans, Component: b.Component, Name: name, Log: b.Log, Registerer: b.Registry})
	if exporter != nil {
		b.Observe(exporter)
	}
	return err
}

// Observe adds an observer that runs in the background.
func (b *Base) Observe(o interface {
	tunnel.Observer
	Run(context.Context)
}) {
	b.Observers, b.Background = append(b.Observers, o), append(b.Background, o.Run)
}

// Opened notes a listener for Close.
func (b *Base) Opened(l net.Listener, err error) (net.Listener, error) {
	if err == nil {
		b.opened = append(b.opened, l)
	}
	return l, err
}

// Close closes the audit log and all listeners of a program that does not start to serve.
func (b *Base) Close() {
	b.Audit.Close()
	for _, l := range b.opened {
		_ = l.Close()
	}
}
