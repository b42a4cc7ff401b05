package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/adapters"
	"konnectivity/httpsproxy"
	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/cli"
	"konnectivity/internal/observe"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/internal/version"
	"konnectivity/socks5"
	"konnectivity/tunnel"
)

// sidecar is one process, put together but not started.
type sidecar struct {
	opts     *Options
	log      logrus.FieldLogger
	registry *prometheus.Registry // nil where nobody can ask for metrics
	certs    *tlsreload.Source
	adapter  *adapters.Adapter
	self     selfCheck
	fronts   []served
	health   net.Listener // nil where it is off
	admin    net.Listener // likewise
	probes   []net.Listener
	table    *admin.Table // nil where admin is
	draining atomic.Bool

	credentials *socks5.Credentials // nil: nobody is asked
}

// served is a front and one of the listeners that it serves.
type served struct {
	front Front
	ln    net.Listener
	serve func(context.Context, net.Listener) error
	idle  func() // closes what it keeps for later requests; nil: it keeps nothing
}

// run serves as o says until ctx ends, drains, and returns nil once everything
// has stopped. An error before anything is served is a usage error (cli) where
// the flags are to blame.
func run(ctx context.Context, o *Options, log logrus.FieldLogger) error {
	s, err := compose(o, log)
	if err != nil {
		return err
	}
	return s.run(ctx)
}

// compose makes all parts and opens all ports, or none.
func compose(o *Options, log logrus.FieldLogger) (_ *sidecar, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.sayIneffective(log)
	s := &sidecar{opts: o, log: log}
	if o.adminAddress != "" {
		s.table = admin.NewTable()
	}
	if o.healthAddress != "" {
		s.registry = observe.NewRegistry(o.Program)
	}
	s.certs, err = tlsreload.New(o.Files, tlsreload.Options{
		Name: "konnectivity", Lenient: true, Peer: o.Peers.Peer(pki.RoleServer), Own: cli.Own(pki.RoleClient),
		Log: log, Registerer: s.registerer(),
	})
	if err != nil {
		return nil, err
	}
	if s.adapter, err = adapters.New(s.adapterOptions()); err != nil {
		return nil, named(err)
	}
	s.certs.OnChange(s.adapter.Retry)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err = s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

// registerer returns nil, rather than an interface that holds a nil pointer,
// where nobody can ask for metrics.
func (s *sidecar) registerer() prometheus.Registerer {
	if s.registry == nil {
		return nil
	}
	return s.registry
}

func (s *sidecar) adapterOptions() adapters.Options {
	o := s.opts.Adapter(s.certs, s.log)
	o.Direct.Refuse = s.self.is
	o.Server.Leave = s.closeIdle
	o.Registerer = s.registerer()
	return o
}

// Adapter is the way out that the flags describe, for a sidecar and for those
// who want to try it as one.
func (o *Options) Adapter(certs adapters.ClientTLS, log logrus.FieldLogger) adapters.Options {
	return adapters.Options{
		Server: adapters.ServerOptions{
			Address:    tunnel.JoinAddress(o.ServerHost, o.ServerPort),
			ServerName: o.serverName,
			TLS:        certs,
			Mode:       o.Link,

			ResumeWindow: o.resumeWindow,
			Lanes:        o.lanes,
			Software:     o.Program + "/" + version.Get().Version,
		},
		Hosted: o.Hosted,
		Direct: o.direct,
		SOCKS5: o.Resolve,
		HTTPS:  o.Proxies,
		Log:    log,
	}
}

// open makes the fronts and opens their ports and that of health.
func (s *sidecar) open() error {
	o := s.opts
	main, second, err := s.listen()
	if err == nil {
		err = s.addFronts(main, second)
	}
	if err != nil {
		for _, ln := range append(main, second...) {
			_ = ln.Close()
		}
		return err
	}
	if err := s.openProbes(reachable); err != nil {
		return err
	}
	if err := s.openTransparent(); err != nil {
		return err
	}
	if o.healthAddress != "" {
		if s.health, err = cli.Listen("health-address", o.healthAddress); err != nil {
			return err
		}
	}
	if o.adminAddress != "" {
		s.admin, err = cli.Listen("admin-address", loopback(o.adminAddress))
	}
	return err
}

// listen opens the ports of --serving-port's front, and that of the other one.
// Those that it has opened when it fails are the caller's to close.
func (s *sidecar) listen() (main, second []net.Listener, err error) {
	o := s.opts
	if o.servesTCP() {
		ln, err := cli.Listen("serving-port", o.at(o.ServingPort))
		if err != nil {
			return main, second, err
		}
		s.self.add(ln)
		main = append(main, ln)
	}
	if o.ServingUDS != "" {
		ln, err := unixsocket.Listen(o.ServingUDS, unixsocket.Options{Replace: true, Mode: o.udsMode, Owner: o.udsOwner})
		if err != nil {
			return main, second, fmt.Errorf("--serving-uds: %w", err)
		}
		main = append(main, ln)
	}
	switch {
	case o.shared():
		second = append(second, admission.NewHandOff(main[0].Addr()))
	case o.serves(o.second()):
		ln, err := cli.Listen(o.secondFlag(), o.at(o.SecondPort))
		if err != nil {
			return main, second, err
		}
		s.self.add(ln)
		second = append(second, ln)
	}
	return main, second, nil
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
	forwarder, err := s.forwarder(SOCKS5, s.adapter.SOCKS5())
	if err != nil {
		return err
	}
	o := socks5.Options{
		Forwarder: forwarder, Other: other,
		MaxConns: s.opts.maxConnections, Drain: s.opts.drainTimeout,
		AccessLog: s.opts.accessLog, Log: s.log, Registerer: s.registerer(),
	}
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
	forwarder, err := s.forwarder(HTTP, s.adapter.Connect())
	if err != nil {
		return err
	}
	o := httpsproxy.Options{
		Connect: forwarder, Forward: s.adapter.Forward(), Transport: s.adapter.Transport(),
		MaxConns: s.opts.maxConnections, Drain: s.opts.drainTimeout,
		AccessLog: s.opts.accessLog, Log: s.log, Registerer: s.registerer(),
	}
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

// forwarder is a front's, with its traffic as metrics.
func (s *sidecar) forwarder(front Front, d tunnel.Dialer) (*tunnel.Forwarder, error) {
	total := new(tunnel.Totals)
	if s.registry != nil {
		if err := registerTraffic(s.registry, front, total); err != nil {
			return nil, err
		}
	}
	forwarder := &tunnel.Forwarder{Dialer: s.self.guard(d), Bounds: tunnel.Bounds{Idle: s.opts.idleTimeout}, Total: total}
	if s.table != nil {
		forwarder.Observers = append(forwarder.Observers, s.table)
	}
	return forwarder, nil
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

// close undoes open.
func (s *sidecar) close() {
	for _, f := range s.fronts {
		_ = f.ln.Close()
	}
	for _, ln := range append([]net.Listener{s.health, s.admin}, s.probes...) {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// run serves until ctx ends or a part fails, and joins everything. What the
// fronts need lives until their last connection has ended.
func (s *sidecar) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	behind, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var background, fronts sync.WaitGroup
	background.Go(func() { s.certs.Run(behind) })
	background.Go(func() { failing(fail, s.adapter.Run(behind)) })
	if s.health != nil {
		s.log.WithField("address", s.health.Addr().String()).Info("serving health and metrics")
		background.Go(func() { failing(fail, observe.Serve(behind, s.health, s.observed(), s.log)) })
	}
	if s.admin != nil {
		s.log.WithField("address", s.admin.Addr().String()).Info("serving the status page")
		background.Go(func() { s.table.Run(behind) })
		background.Go(func() { failing(fail, observe.Serve(behind, s.admin, s.adminHandler(), s.log)) })
	}
	for _, ln := range s.probes {
		background.Go(func() { answerProbes(ln) })
	}
	for _, f := range s.fronts {
		s.log.WithFields(logrus.Fields{"front": f.front, "address": f.ln.Addr().String()}).Info("serving")
		fronts.Go(func() { failing(fail, f.serve(ctx, f.ln)) })
	}
	<-ctx.Done()
	s.draining.Store(true)
	s.log.WithField("timeout", s.opts.drainTimeout.String()).Info("stopping; open connections may finish")
	for _, ln := range s.probes {
		_ = ln.Close() // a proxy that stops takes no connections either
	}
	fronts.Wait()
	stop()
	background.Wait()
	var failed *partError
	if errors.As(context.Cause(ctx), &failed) {
		return failed.err
	}
	return nil
}

// partError tells a part that failed from an end that was asked for.
type partError struct{ err error }

func (e *partError) Error() string { return e.err.Error() }

func failing(fail context.CancelCauseFunc, err error) {
	if err != nil {
		fail(&partError{err})
	}
}

// observed answers health and metrics.
func (s *sidecar) observed() http.Handler {
	health := observe.NewHealth(observe.HealthOptions{})
	health.Ready("server", s.adapter.Ready)
	health.Ready("draining", func() error {
		if s.draining.Load() {
			return errors.New("shutting down")
		}
		return nil
	})
	mux := http.NewServeMux()
	health.Mount(mux)
	observe.MountMetrics(mux, s.registry)
	return mux
}
