package sidecar

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"konnectivity/internal/cli"
	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// checkTransparent checks the flags of the transparent front.
func (o *Options) checkTransparent() error {
	switch port := o.transparentPort; {
	case port == 0:
		return nil
	case !front.Redirects:
		return cli.Usagef("--transparent-port: only Linux tells where a redirected connection was to go, and this is %s; remove the flag", runtime.GOOS)
	case port == o.ServingPort:
		return cli.Usagef("--transparent-port and --serving-port are both %d", port)
	case port == o.SecondPort:
		return cli.Usagef("--transparent-port and --%s are both %d", o.secondFlag(), port)
	case o.credentialsFile != "":
		return cli.Usagef("--transparent-port: redirected clients cannot be asked for the password that --socks5-credentials-file demands; use a sidecar of its own for them")
	}
	return nil
}

// openTransparent makes the transparent front and opens its port at the two addresses to
// which netfilter redirects local connections.
func (s *sidecar) openTransparent() error {
	if s.opts.transparentPort == 0 {
		return nil
	}
	common, err := s.common(Transparent, s.refuseServer(s.adapter.Straight()))
	if err != nil {
		return err
	}
	redirected, err := front.NewRedirected(common)
	if err != nil {
		return err
	}
	for _, ip := range []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback} {
		ln, err := s.Opened(cli.Listen("transparent-port", tunnel.JoinAddress(ip.String(), s.opts.transparentPort)))
		if ip.To4() == nil && tunnel.IsErrno(err, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT) {
			s.Log.Info("this machine has no IPv6, so none is redirected to the transparent port")
			continue
		}
		if err != nil {
			return err
		}
		s.self.add(ln)
		s.fronts = append(s.fronts, frontListener{Transparent, ln, redirected.Serve, nil})
	}
	return nil
}

// refuseServer returns d for all destinations but the server, which cannot be reached through
// itself. If this process's own connections are redirected, those to the server are too,
// and nothing works without them.
func (s *sidecar) refuseServer(d tunnel.Dialer) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		to, err := netip.ParseAddrPort(f.Address)
		if err != nil || !s.adapter.IsServer(to) {
			return d.Dial(ctx, f)
		}
		s.Log.WithField("destination", f.Address).Warnf("a connection to the konnectivity server was redirected to --transparent-port and is refused; "+
			"if it is this sidecar's own, run `konnectivity redirect` with --uid=%d, its user", os.Getuid())
		return nil, &tunnel.DialError{Failure: tunnel.FailDenied, Address: f.Address, Reason: "the destination is the konnectivity server itself"}
	})
}
