package sidecar

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/httpsproxy"
	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/socks5"
	"konnectivity/tunnel"
)

// served is a front and one of the listeners that it serves.
type served struct {
	front Front
	ln    net.Listener
	serve func(context.Context, net.Listener) error
	idle  func() // closes what it keeps for later requests; nil: it keeps nothing
}

// addFronts gives each front its listeners. Whose port it is matters only for
// two separate ones: on a shared port SOCKS5 accepts and hands HTTP over.
func (s *sidecar) addFronts(main, second []net.Listener) error {
	toSOCKS5, toHTTP := main, second
	if s.opts.Front == HTTP && !s.opts.shared() {
		toSOCKS5, toHTTP = second, main
	}
	if err := s.loadCredentials(); err != nil {
		return err
	}
	var other func(tunnel.Conn)
	if s.opts.shared() {
		other = handOver(second[0].(*admission.HandOff))
	}
	if len(toSOCKS5) > 0 {
		if err := s.addSOCKS5(toSOCKS5, other); err != nil {
			return err
		}
	}
	if len(toHTTP) > 0 {
		return s.addHTTP(toHTTP)
	}
	return nil
}

// descriptors is each front's part of so many; 0 stands for any number.
func (o *Options) descriptors(all int) int {
	fronts := 1
	if o.SecondPort != 0 {
		fronts++
	}
	if o.transparentPort != 0 {
		fronts++
	}
	return all / fronts
}

// loadCredentials reads what clients of either front are asked for.
func (s *sidecar) loadCredentials() (err error) {
	if s.opts.credentialsFile == "" {
		return nil
	}
	if s.credentials, err = socks5.LoadCredentials(s.opts.credentialsFile, s.log); err != nil {
		return fmt.Errorf("--socks5-credentials-file: %w", err)
	}
	return nil
}

func (s *sidecar) addSOCKS5(lns []net.Listener, other func(tunnel.Conn)) error {
	common, err := s.common(SOCKS5, s.adapter.SOCKS5())
	if err != nil {
		return err
	}
	o := socks5.Options{Options: common, Other: other}
	if s.credentials != nil {
		o.Credentials = s.credentials
	}
	front, err := socks5.New(o)
	if err != nil {
		return err
	}
	for _, ln := range lns {
		s.fronts = append(s.fronts, served{SOCKS5, ln, front.Serve, nil})
	}
	return nil
}

func (s *sidecar) addHTTP(lns []net.Listener) error {
	common, err := s.common(HTTP, s.adapter.Connect())
	if err != nil {
		return err
	}
	o := httpsproxy.Options{Options: common, Forward: s.adapter.Forward(), Transport: s.adapter.Transport(), Self: s.self.names}
	if s.credentials != nil {
		o.Credentials = s.credentials
	}
	front, err := httpsproxy.New(o)
	if err != nil {
		return err
	}
	for _, ln := range lns {
		s.fronts = append(s.fronts, served{HTTP, ln, front.Serve, front.CloseIdle})
	}
	return nil
}

// common returns what is configured alike for every front: a Forwarder that dials
// by d, with its traffic as metrics, and the limits and logs.
func (s *sidecar) common(kind Front, d tunnel.Dialer) (front.Options, error) {
	total := new(tunnel.Totals)
	if s.registry != nil {
		if err := registerTraffic(s.registry, kind, total); err != nil {
			return front.Options{}, err
		}
	}
	forwarder := &tunnel.Forwarder{Dialer: d, Bounds: tunnel.Bounds{Idle: s.opts.idleTimeout}, Total: total}
	if s.table != nil {
		forwarder.Observers = append(forwarder.Observers, s.table)
	}
	return front.Options{
		Forwarder: forwarder,
		MaxConns:  s.opts.maxConnections, Descriptors: s.opts.descriptors(admission.Descriptors()), Drain: s.opts.drainTimeout,
		AccessLog: s.opts.accessLog, Log: s.log, Registerer: s.registerer(),
	}, nil
}

func registerTraffic(r prometheus.Registerer, front Front, total *tunnel.Totals) error {
	for direction, n := range map[string]*atomic.Int64{"up": &total.Up, "down": &total.Down} {
		err := r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "konnectivity_sidecar_relayed_bytes_total",
			Help:        "Bytes relayed for clients, by front; up is away from the client.",
			ConstLabels: prometheus.Labels{"front": string(front), "direction": direction},
		}, func() float64 { return float64(n.Load()) }))
		if err != nil {
			return err
		}
	}
	return nil
}

// closeIdle lets a server go that waits for nothing but idle connections. It is
// not called before run, so the fronts are all there.
func (s *sidecar) closeIdle() {
	for _, f := range s.fronts {
		if f.idle != nil {
			f.idle()
		}
	}
}
