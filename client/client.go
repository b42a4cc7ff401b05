package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"time"

	"konnectivity/adapters/uplink"
	"konnectivity/internal/files"
	"konnectivity/internal/pki"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
)

// DialTimeout bounds a dial whose context has no deadline.
const DialTimeout = tunnel.DefaultDialTimeout

// Client reaches what the agents of a server reach. It is made by New: its zero value cannot
// be used. Its methods may be called from any goroutine.
type Client struct {
	dialer tunnel.Dialer
	server *uplink.Server // which dialer is; nil: it is a socket

	ctx  context.Context // ends with Close
	end  context.CancelFunc
	runs sync.WaitGroup
}

// New makes a Client, which begins to connect to the server at once and keeps trying: New
// does not wait for that, and no server is no error. It fails on Options that can never
// work, and on certificate files that are missing or broken, by a sentence that names the
// field or the file. The Client must be closed.
func New(o Options) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.Name = cmp.Or(o.Name, "client")
	c := new(Client)
	c.ctx, c.end = context.WithCancel(context.Background())
	if o.Socket != "" {
		c.dialer = &socket{path: o.Socket, name: o.Name}
		return c, nil
	}
	if err := c.connect(o); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// connect starts what keeps the way to the server.
func (c *Client) connect(o Options) error {
	way := uplink.Options{
		Address: o.Address, ServerName: o.ServerName, TLS: ownTLS{o.TLS}, Mode: linkModes[o.Mode],
		ResumeWindow: o.window(), Lanes: o.Lanes, MaxServers: o.MaxServers, Software: o.Name, Log: logTo(o.Log),
	}
	if o.TokenFile != "" {
		way.Token = files.Token(o.TokenFile)
	}
	if err := throughProxy(&way, o.Proxy); err != nil {
		return err
	}
	var certs *tlsreload.Source
	var err error
	if o.TLS == nil {
		rule := pki.RoleRule{Want: pki.RoleServer, Require: o.RequirePeerRole, TrustDomain: o.PeerTrustDomain}
		certs, err = tlsreload.New(tlsreload.Files{CA: o.CAFile, Cert: o.CertFile, Key: o.KeyFile},
			tlsreload.Options{Name: "client", Peer: rule.Check, Log: way.Log})
		if err != nil {
			return err
		}
		way.TLS = certs
	}
	if c.server, err = uplink.New(way); err != nil {
		return err
	}
	c.dialer = c.server
	if certs != nil {
		certs.OnChange(c.server.Retry)
		c.runs.Go(func() { certs.Run(c.ctx) })
	}
	c.runs.Go(func() { c.server.Run(c.ctx) })
	return nil
}

// ownTLS makes configurations of the caller's.
type ownTLS struct{ *tls.Config }

// Client implements uplink.ClientTLS.
func (o ownTLS) Client(serverName string, nextProtos ...string) *tls.Config {
	c := o.Config.Clone()
	c.NextProtos = nextProtos
	c.ServerName = cmp.Or(c.ServerName, serverName)
	if c.ClientSessionCache == nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return c
}

// DialContext connects to address, host:port, where an agent looks up host if it is a name.
// network is "tcp", "tcp4" or "tcp6". It blocks until the destination has answered or ctx
// ends, for DialTimeout at most if ctx has no deadline, and for a server that cannot be
// reached for 5 s at most. The end of ctx after that does not harm the connection. An error
// is a *DialError.
func (c *Client) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DialTimeout)
		defer cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	flow := tunnel.NewFlow(network, address)
	if id, ok := ctx.Value(idKey{}).(string); ok {
		flow.ID = id
	}
	far, err := c.dialer.Dial(ctx, flow)
	switch {
	case err == nil:
		return far, nil
	case c.ctx.Err() != nil:
		return nil, &tunnel.DialError{Failure: Unavailable, Address: address, Reason: "the client is closed", Err: net.ErrClosed}
	}
	return nil, tunnel.AsDialError(address, err)
}

// Dial is DialContext without a context.
func (c *Client) Dial(network, address string) (net.Conn, error) {
	return c.DialContext(context.Background(), network, address)
}

// Ready returns nil while the server can be expected to take requests, else a sentence that
// says why not. It does not block, and is nil always with a Socket, which is not kept open.
func (c *Client) Ready() error {
	if c.server == nil {
		return nil
	}
	return c.server.Ready()
}

// Close disconnects from the server and waits until everything that the Client started has
// ended, for some seconds at most. Open connections by a link are reset: their reads and writes
// fail with net.ErrClosed, as do dials under way, and later ones. Bytes that were written to a
// connection before its own Close are still delivered, for up to a second. Connections by
// CONNECT stay open; their own Close waits, a second at most, until the server has those bytes.
// Further calls do nothing. The error is always nil.
func (c *Client) Close() error {
	c.end()
	c.runs.Wait()
	return nil
}

// Server is a server that a Client has a link to.
type Server struct {
	ID        string         // its --server-id
	Software  string         // name and version
	Address   netip.AddrPort // 0.0.0.0 with its port, where a proxy looks it up
	Since     time.Time      // when the link began
	RoundTrip time.Duration  // as last measured; 0: not yet
}

// Servers returns the servers to which there is a link at the moment: none by CONNECT.
func (c *Client) Servers() (all []Server) {
	if c.server == nil {
		return nil
	}
	for _, l := range c.server.Links() {
		all = append(all, Server{l.Peer.ID, l.Peer.Software, l.Address, l.Since, l.Stats.RTT})
	}
	return all
}

type idKey struct{}

// WithID has a connection that is dialed with the context known by this id in the logs and
// status pages of all processes on its way, except by an old server. An id has up to 64
// letters, digits and -_. and any other is ignored; without one, each dial makes its own.
func WithID(ctx context.Context, id string) context.Context {
	if id = tunnel.CleanID(id); id == "" {
		return ctx
	}
	return context.WithValue(ctx, idKey{}, id)
}
