package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"konnectivity/client"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
	"konnectivity/tunnel"
)

// dialTrace describes, for --verbose, the hops of a connection and their latency.
type dialTrace struct {
	out     io.Writer
	admin   string         // address of the server's admin port; "" if it was not given
	client  *status.Client // for admin; nil without it
	id      string         // the connection's; "" if no hop learns it
	address string         // the destination
	start   time.Time      // of the dial
}

// say prints a line, which may quote peers.
func (t *dialTrace) say(format string, args ...any) {
	fmt.Fprintln(t.out, cli.Printable(fmt.Sprintf(format, args...)))
}

// begin prints the addresses of the path's host, since each may be another server.
func (t *dialTrace) begin(ctx context.Context, way string) {
	name := "connection"
	if t.id != "" {
		name += " " + t.id
	}
	t.say("%s to %s by %s", name, t.address, way)
	u, err := url.Parse(way)
	if err == nil && u.Hostname() != "" && net.ParseIP(u.Hostname()) == nil {
		asked := time.Now()
		if addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()); err == nil {
			t.say("name %s is %s (%s)", u.Hostname(), status.Addresses(addrs), status.Duration(time.Since(asked).Seconds()))
		}
	}
	t.start = time.Now()
}

// failed prints the duration of the dial, the reason, the last hop, and what to do.
func (t *dialTrace) failed(ctx context.Context, dial *tunnel.DialError) {
	t.say("failed after %s: %s", status.Span(time.Since(t.start)), dial.Text())
	if t.admin != "" && t.id != "" {
		if next := t.client.FailedBy(ctx, t.admin, t.id); next != "" {
			t.say("it went by %s", next)
		}
	}
	if hint := admin.Hint(dial.Failure); hint != "" && t.asked(dial) {
		t.say("%s", hint)
	}
}

// asked reports whether a hop was asked for the destination, which hints are about. It was
// not where nothing answers at the --via, or another program does; the reason says that.
func (t *dialTrace) asked(dial *tunnel.DialError) bool {
	_, wrong := errors.AsType[*via.WrongPort](dial)
	return !wrong && dial.Address == t.address
}

// connected prints the hops of the established connection.
func (t *dialTrace) connected(ctx context.Context, dialer tunnel.Dialer, far tunnel.Conn) {
	total := time.Since(t.start)
	var servers []client.Server
	if way, ok := dialer.(*via.Server); ok {
		servers = way.Servers()
	}
	var parts []string
	for _, s := range servers {
		t.say("server %s (%s) at %s, round trip %s", s.ID, s.Software, s.Address, status.Duration(s.RoundTrip.Seconds()))
		parts = append(parts, "the server's handshake "+status.Duration(s.Since.Sub(t.start).Seconds()))
	}
	if t.admin != "" {
		if trip := t.agent(ctx); trip > 0 {
			parts = append(parts, "server to agent and back "+status.Duration(trip))
		}
	}
	to := ""
	if remote := far.RemoteAddr(); len(servers) > 0 && remote != nil && remote.String() != "" {
		to = " to " + remote.String() // without a link it is a proxy, or the address asked for
	}
	if len(parts) > 0 {
		to += ", of which " + strings.Join(parts, ", ")
	}
	t.say("connected in %s%s", status.Duration(total.Seconds()), to)
}

// agent prints the agent that the server uses, and returns the round trip between
// them in seconds; 0 if it is unknown.
func (t *dialTrace) agent(ctx context.Context) float64 {
	if t.id == "" {
		t.say("%s: which of its connections this is cannot be told, since the path carries no id", t.admin)
		return 0
	}
	c, err := t.client.Connection(ctx, t.admin, t.id)
	for n := 0; n < listTries && err == nil && c == nil; n++ {
		time.Sleep(listPause)
		c, err = t.client.Connection(ctx, t.admin, t.id)
	}
	switch {
	case err != nil:
		t.say("%s: %v", t.admin, err)
		return 0
	case c == nil:
		t.say("%s: it does not know the connection; it is another server, or a proxy on the way loses the id", t.admin)
		return 0
	}
	name := strings.TrimPrefix(c.Next, admin.RoleAgent+" ")
	if p := t.client.Agent(ctx, t.admin, c.Tenant, name); p != nil {
		t.say("agent %s at %s over %s, round trip from the server %s", p.ID, p.Remote, p.Protocol, status.Duration(p.RoundTrip))
		return p.RoundTrip
	}
	t.say("the server goes by %s", c.Next)
	return 0
}

const (
	// A server answers a dial before it lists the connection, and its lists may be
	// 0.4 s old.
	listPause = 50 * time.Millisecond
	listTries = 40
)
