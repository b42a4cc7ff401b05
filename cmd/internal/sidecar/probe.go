package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"konnectivity/internal/admission"
	"konnectivity/internal/cli"
)

// openProbes listens on the proxies' ports at this machine's other addresses, which
// kubelet's TCP probes use. A connection there shows that the proxy listens, and nothing
// else. An address that cannot be used (an IPv6 one may still be tentative, RFC 4862
// §5.4) is an error only if there is no other.
func (s *sidecar) openProbes(others func() ([]netip.Addr, error)) error {
	if !s.opts.answerProbes {
		return nil
	}
	addresses, err := others()
	if err != nil {
		return fmt.Errorf("--answer-tcp-probes: %w", err)
	}
	for _, own := range s.self.own {
		if !own.Addr().IsLoopback() {
			continue // probes reach the proxy itself
		}
		if err := s.openProbesBeside(own.Port(), addresses); err != nil {
			return err
		}
	}
	return nil
}

// openProbesBeside listens at as many of the addresses as possible.
func (s *sidecar) openProbesBeside(port uint16, addresses []netip.Addr) error {
	var failed []error
	for _, a := range addresses {
		ln, err := s.Opened(cli.Listen("answer-tcp-probes", netip.AddrPortFrom(a, port).String()))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		s.probes, s.Background = append(s.probes, ln), append(s.Background, func(ctx context.Context) { s.answerProbes(ctx, ln) })
	}
	if len(failed) > 0 && len(failed) == len(addresses) {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		s.Log.WithError(err).Warn("TCP probes of one address will not be answered")
	}
	return nil
}

// reachable returns the addresses of this machine that others can reach.
func reachable() (addresses []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			addresses = append(addresses, p.Addr().Unmap())
		}
	}
	return addresses, err
}

// answerProbes closes all connections until the listener is closed.
func (s *sidecar) answerProbes(ctx context.Context, ln net.Listener) {
	probes := admission.Acceptor{What: "TCP probes", Log: s.Log}
	err := probes.Run(ctx, ln, func(conn net.Conn) { _ = conn.Close() })
	if err != nil && !errors.Is(err, net.ErrClosed) {
		s.Log.WithError(err).WithField("address", ln.Addr().String()).Warn("TCP probes are not answered any more")
	}
}
