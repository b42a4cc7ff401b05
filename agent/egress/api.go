package egress

import (
	"context"
	"net"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/race"
)

// notBeside refuses what an agent beside the API server is not for.
var notBeside = &tunnel.DialError{Failure: tunnel.FailDenied, Reason: "this agent is beside the API server (--api-server) and reaches nothing else"}

// reach dials what f asks for: with Options.APIServers, one of these, whatever address it is.
func (d *Dialer) reach(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if len(d.opts.APIServers) == 0 {
		return d.dial(ctx, f)
	}
	if f.Network != link.NetworkAPI {
		return nil, notBeside
	}
	tries := make([]*tunnel.Flow, len(d.opts.APIServers))
	for i, address := range d.opts.APIServers {
		tries[i] = ownTry(f, address)
	}
	conn, try, err := race.Any(ctx, tries, d.dial)
	if err == nil {
		f.TakeResult(try)
		f.Resolved = conn.RemoteAddr().String()
	}
	return conn, err
}

// reached is reach for a connection that is there: it may lead to any of them.
func (d *Dialer) reached(f *tunnel.Flow, open bool, connected net.Addr) (err error) {
	if len(d.opts.APIServers) == 0 {
		return d.allow(f, open, connected)
	}
	for _, address := range d.opts.APIServers {
		try := ownTry(f, address)
		if err = d.allow(try, open, connected); err == nil {
			if !open {
				f.Rule = try.Rule
			}
			return nil
		}
	}
	return err
}

// ownTry is f at an address of this agent's choice.
func ownTry(f *tunnel.Flow, address string) *tunnel.Flow {
	try := f.To(address)
	try.Network, try.Origin = "tcp", f.Origin
	return try
}
