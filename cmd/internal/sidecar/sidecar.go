package sidecar

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters"
	"konnectivity/adapters/uplink"
	"konnectivity/cmd/internal/program"
	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
	"konnectivity/internal/files"
	"konnectivity/internal/front"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/version"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// sidecar is a composed process.
type sidecar struct {
	program.Base // its Registry is served with --health-address
	opts         *Options
	certs        *tlsreload.Source
	adapter      *adapters.Adapter
	self         selfCheck
	fronts       []frontListener
	health       net.Listener // nil if off
	admin        net.Listener // nil if off
	probes       []net.Listener
	table        *admin.Table // nil if admin is
	draining     atomic.Bool

	credentials front.Checker // of clients of SOCKS5 and HTTP; nil if there are none
}

// run serves until ctx ends, drains, and returns nil once everything has stopped. An
// error in the flags is a usage error of cli.
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
	o.warnIneffective(log)
	s := &sidecar{opts: o, Base: program.New(o.Program, log)}
	if o.adminAddress != "" {
		s.table = admin.NewTable()
		s.Observe(s.table)
	}
	s.certs, err = s.Certificates(o.Files, tlsreload.Options{
		Name: "konnectivity", Lenient: true, Peer: o.Peers.Peer(pki.RoleServer), Own: cli.Own(pki.RoleClient),
	})
	if err != nil {
		return nil, err
	}
	if s.adapter, err = adapters.New(s.adapterOptions()); err != nil {
		return nil, usageError(err)
	}
	s.certs.OnChange(s.adapter.Retry)
	s.OnReroute(s.adapter.Rerouted)
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err = s.Record(s.adapter.ID(), o.auditLog, o.traces); err != nil {
		return nil, err
	}
	if err = s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *sidecar) adapterOptions() adapters.Options {
	o := s.opts.Adapter(s.certs, s.Log)
	o.Self, o.Direct.Refuse = s.self.names, s.self.is
	o.Server.Leave = s.closeIdle
	o.Registerer = s.Registry
	return o
}

// Adapter returns the options of the adapter of a sidecar with these flags.
func (o *Options) Adapter(certs adapters.ClientTLS, log logrus.FieldLogger) adapters.Options {
	out := o.Out
	out.Server.Address, out.Server.TLS = tunnel.JoinAddress(o.ServerHost, o.ServerPort), certs
	// The rest is for the destination. A server that says nothing must not hold up a resume
	// until its window is over.
	out.Server.ConnectTimeout = min(max(o.dial/2, uplink.DefaultConnectTimeout), resume.DefaultWindow/2)
	if o.TokenFile != "" {
		out.Server.Token = files.Token(o.TokenFile)
	}
	out.Server.Software, out.Log = o.Program+"/"+version.Get().Version, log
	return out
}

// open makes the fronts and opens all ports.
func (s *sidecar) open() error {
	o := s.opts
	main, second, err := s.listen()
	if err == nil {
		err = s.addFronts(main, second)
	}
	if err != nil {
		return err
	}
	if err := s.openProbes(reachable); err != nil {
		return err
	}
	if err := s.openTransparent(); err != nil {
		return err
	}
	if o.healthAddress != "" {
		if s.health, err = s.Opened(cli.Listen("health-address", o.healthAddress)); err != nil {
			return err
		}
	}
	if o.adminAddress != "" {
		s.admin, err = s.Opened(cli.Listen("admin-address", loopback(o.adminAddress)))
	}
	return err
}
