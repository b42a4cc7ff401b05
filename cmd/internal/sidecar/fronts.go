package sidecar

import (
	"context"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/httpsproxy"
	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/internal/observe"
	"konnectivity/socks5"
	"konnectivity/tunnel"
)

// frontListener is a front and one of the listeners that it serves.
type frontListener struct {
	front Front
	ln    net.Listener
	serve func(context.Context, net.Listener) error
	idle  func() // closes connections kept for later requests; nil if none are kept
}

// addFronts gives each front its listeners. On a shared port SOCKS5 accepts all
// connections and hands those with HTTP over.
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

// descriptors is each front's share of all descriptors; 0 is unlimited.
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

// loadCredentials reads --socks5-credentials-file, if it is given.
func (s *sidecar) loadCredentials() error {
	if s.opts.credentialsFile == "" {
		return nil
	}
	loaded, err := socks5.LoadCredentials(s.opts.credentialsFile, s.Log)
	if err != nil {
		return fmt.Errorf("--socks5-credentials-file: %w", err)
	}
	s.credentials = loaded
	return nil
}

func (s *sidecar) addSOCKS5(lns []net.Listener, other func(tunnel.Conn)) error {
	common, err := s.common(SOCKS5, s.adapter.SOCKS5())
	if err != nil {
		return err
	}
	front, err := socks5.New(socks5.Options{Options: common, Other: other, Credentials: s.credentials})
	if err != nil {
		return err
	}
	for _, ln := range lns {
		s.fronts = append(s.fronts, frontListener{SOCKS5, ln, front.Serve, nil})
	}
	return nil
}

func (s *sidecar) addHTTP(lns []net.Listener) error {
	common, err := s.common(HTTP, s.adapter.Connect())
	if err != nil {
		return err
	}
	front, err := httpsproxy.New(httpsproxy.Options{
		Options: common, Forward: s.adapter.Forward(), Transport: s.adapter.Transport(), Self: s.self.names, Credentials: s.credentials,
	})
	if err != nil {
		return err
	}
	for _, ln := range lns {
		s.fronts = append(s.fronts, frontListener{HTTP, ln, front.Serve, front.CloseIdle})
	}
	return nil
}

// common returns the options that all fronts share: a Forwarder that dials by d, with
// its traffic as metrics, limits and logs.
func (s *sidecar) common(kind Front, d tunnel.Dialer) (front.Options, error) {
	total := new(tunnel.Totals)
	if err := registerTraffic(s.Registry, kind, total); err != nil {
		return front.Options{}, err
	}
	o := s.opts.fronts
	o.Forwarder = &tunnel.Forwarder{Dialer: d, Idle: s.opts.idle, DialTimeout: s.opts.dial, Total: total, Observers: s.Observers}
	o.Descriptors, o.Log, o.Registerer = s.opts.descriptors(admission.Descriptors()), s.Log, s.Registry
	return o, nil
}

func registerTraffic(r prometheus.Registerer, front Front, total *tunnel.Totals) error {
	figures := observe.NewFigures("konnectivity_sidecar_", func() *tunnel.Totals { return total })
	figures.Bytes("relayed_bytes_total", "Bytes relayed for clients, by front; up is away from the client.", (*tunnel.Totals).Load, "up", "down")
	return prometheus.WrapRegistererWith(prometheus.Labels{"front": string(front)}, r).Register(figures)
}

// closeIdle closes idle connections, so that a draining server does not wait for them.
// It is called during run only, when all fronts exist.
func (s *sidecar) closeIdle() {
	for _, f := range s.fronts {
		if f.idle != nil {
			f.idle()
		}
	}
}
