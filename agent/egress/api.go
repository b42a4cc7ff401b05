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

// besideAPI reports whether the agent reaches the API server beside it and nothing else.
func (d *Dialer) besideAPI() bool { return len(d.opts.APIServers) > 0 }

// dialAPI dials one of Options.APIServers, whatever address f asks for.
func (d *Dialer) dialAPI(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
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

// allowAPI is allow for a connection that dialAPI has made: it may lead to any of them.
// Another is one that an agent without APIServers has handed over.
func (d *Dialer) allowAPI(f *tunnel.Flow, open bool, connected net.Addr) (err error) {
	if f.Network != link.NetworkAPI {
		return notBeside
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
