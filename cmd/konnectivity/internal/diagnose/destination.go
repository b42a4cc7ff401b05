package diagnose

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"konnectivity/adapters"
	"konnectivity/adapters/resolve"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/admin"
	"konnectivity/tunnel"
)

// startAdapter starts the adapter of a sidecar; stop ends it.
func (c *pathChecker) startAdapter(ctx context.Context) (stop func(), ok bool) {
	c.group = "destination"
	var err error
	if c.adapter, err = adapters.New(c.opts.Sidecar.Adapter(c.source, c.quiet)); err != nil {
		return nil, c.fail("flags", err.Error(), "A sidecar would not start with them either.")
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.adapter.Run(ctx) })
	return func() { cancel(); running.Wait() }, true
}

// sources has the name and the hint of each step of the resolver chain.
var sources = map[resolve.Source][2]string{
	resolve.FromService: {"Services of the hosted cluster", "Check --kubeconfig, and that the hosted cluster's API can be reached from here."},
	resolve.FromGuest:   {"DNS of the hosted cluster", "Check that the Service of --guest-dns-service exists and that its pods run; it is asked by TCP on port 53 through the tunnel."},
	resolve.FromSystem:  {"DNS of this cluster", "Check /etc/resolv.conf and that DNS server."},
}

// checkName looks the target up in every step of the SOCKS5 front's resolver chain.
func (c *pathChecker) checkName(ctx context.Context) bool {
	host, _, _ := tunnel.SplitAddress(c.opts.Target)
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	lookups := c.adapter.Lookups(ctx, c.opts.Sidecar.Out.SOCKS5, host)
	if len(lookups) == 0 {
		c.ok("name", host+" is left to the agent to look up")
		return true
	}
	if path := c.opts.Sidecar.Out.Hosted.Kubeconfig; path != "" {
		if _, err := os.ReadFile(path); err != nil {
			return c.unreadable("kubeconfig", path, err)
		}
	}
	found, silent := false, false
	for _, l := range lookups {
		words := sources[l.Source]
		ms := milliseconds(l.Took)
		switch {
		case l.Err == nil:
			found = true
			c.add(Finding{Step: words[0], Result: OK, Cause: host + " is " + status.Addresses(l.Answer.Addrs), Milliseconds: ms})
		case resolve.IsNotFound(l.Err):
			c.add(Finding{Step: words[0], Result: OK, Cause: host + " is not known there", Milliseconds: ms})
		default:
			silent = true
			c.fail(words[0], "not available: "+lookupFailure(l.Err), words[1])
		}
	}
	switch {
	case !found && silent:
		return c.fail("name", host+" could not be looked up", "See the step above that failed.")
	case !found:
		return c.fail("name", "nobody knows "+host, "Check its spelling, and with which of the steps above it should be found.")
	}
	return true
}

// lookupFailure returns the text of a failed lookup, with its underlying cause.
func lookupFailure(err error) string {
	dial := tunnel.AsDialError("", err)
	if dial.Err == nil {
		return dial.Text()
	}
	switch inner := tunnel.AsDialError("", dial.Err); {
	case inner.Failure == tunnel.FailTimeout:
		return dial.Text() + " (it does not answer)"
	case inner.Failure != tunnel.FailInternal && inner.Failure != dial.Failure:
		return dial.Text() + " (" + inner.Text() + ")"
	case inner.Failure == tunnel.FailInternal:
		return dial.Text() + " (" + strings.ReplaceAll(dial.Err.Error(), "\n", "; ") + ")"
	default:
		return dial.Text()
	}
}

// checkDestination dials as each front of a sidecar with these flags would.
func (c *pathChecker) checkDestination(ctx context.Context) {
	if c.opts.Sidecar.Out.HTTPS.HTTPSProxy != "" {
		c.dial(ctx, "connection as by HTTP CONNECT", c.adapter.Connect())
		if c.opts.SOCKS5Port == 0 { // a sidecar with such flags has no SOCKS5 front
			return
		}
	}
	c.dial(ctx, "connection as by SOCKS5", c.adapter.SOCKS5())
}

// dial connects to the target and closes the connection.
func (c *pathChecker) dial(ctx context.Context, step string, d tunnel.Dialer) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	flow := tunnel.NewFlow("tcp", c.opts.Target)
	start := time.Now()
	conn, err := d.Dial(ctx, flow)
	if wrong, ok := errors.AsType[*via.WrongPort](err); ok {
		c.fail(step, wrong.Error(), "Another program has taken the port, or the flag names the wrong one.")
		return
	}
	if err != nil {
		dial := tunnel.AsDialError(c.opts.Target, err)
		c.waited = c.waited || dial.Failure == tunnel.FailTimeout || dial.Failure == tunnel.FailAgentLost || dial.Failure == tunnel.FailNoAgent
		cause := dial.Text()
		if words := dial.Failure.String(); !strings.Contains(cause, words) {
			cause = words + ": " + cause
		}
		c.fail(step, cause+c.carriedBy(ctx, flow.ID), advice(dial.Failure, flow.Route))
		return
	}
	to := ""
	if remote := conn.RemoteAddr(); c.linked && flow.Route != "" && remote != nil && remote.String() != "" && remote.String() != c.opts.Target {
		to = " at " + remote.String()
	}
	_ = conn.Close()
	c.timed(step, c.opts.Target+to+routes[flow.Route], start)
}

// advice says what to do about a failed dial. On the route of a customer's proxy, the
// proxy or the path to it failed, not the destination.
func advice(failure tunnel.Failure, way tunnel.Route) string {
	switch {
	case failure == tunnel.FailAuth && way == tunnel.RouteCustomer:
		return "The URL is that in --https-proxy."
	case way == tunnel.RouteCustomer:
		return "The customer's proxy says so, or the path to it failed. Check the address in --https-proxy as the agent sees it, and look at the proxy's log."
	case failure == tunnel.FailUnavailable:
		return "The steps above work, and what is behind them fails: look at the log of the last one that answered."
	default:
		return admin.Hint(failure)
	}
}

// carriedBy names the next hop of a failed dial, if the admin port knows it.
func (c *pathChecker) carriedBy(ctx context.Context, id string) string {
	if c.admin == nil {
		return ""
	}
	if next := c.admin.FailedBy(context.WithoutCancel(ctx), c.opts.ServerAdmin, id); next != "" {
		return "; it went by " + next
	}
	return ""
}

var routes = map[tunnel.Route]string{
	tunnel.RouteDirect: ", bypassing the tunnel", tunnel.RouteFallback: ", bypassing the tunnel, which is deemed down",
	tunnel.RouteCustomer: ", by the customer's proxy",
}

// checkFronts dials through the sidecars that listen at the addresses of the flags.
func (c *pathChecker) checkFronts(ctx context.Context) {
	s := &c.opts.Sidecar
	for flag, at := range c.opts.fronts() {
		if at == net.JoinHostPort(s.ServerHost, strconv.Itoa(int(s.ServerPort))) {
			continue // the server; both have the same default port
		}
		step := "sidecar at " + at
		switch found := via.Identify(ctx, at); {
		case found.Err != nil:
			c.warn(step, "it cannot be asked: "+found.Err.Error(), "Its clients may fare better than check does here: look at who may open its socket, and at firewalls.")
		case found.Kind == via.NoAnswer:
			c.add(Finding{Step: step, Result: Skipped, Cause: "nothing listens there"})
		case found.Kind == via.SpeaksSOCKS5:
			c.dial(ctx, "SOCKS5 "+step, via.SOCKS5(at))
		case found.Kind == via.SpeaksHTTP:
			c.dial(ctx, "HTTP "+step, via.HTTP(at))
		case c.opts.Given(flag):
			c.fail(step, found.Who+" answers there, which is not a sidecar", "Another program has taken the port. End it, or give the sidecar another --"+flag+".")
		default:
			c.warn(step, found.Who+" answers there, which is not a sidecar", "A sidecar on this machine needs another --"+flag+".")
		}
	}
}

// fronts are the addresses of a sidecar with the flag of each, in order.
func (o *Subject) fronts() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range []struct {
			flag string
			port uint16
		}{{"serving-port", o.Sidecar.ServingPort}, {"http-serving-port", o.Sidecar.SecondPort}, {"socks5-serving-port", o.SOCKS5Port}} {
			if f.port != 0 && !yield(f.flag, net.JoinHostPort(o.Sidecar.ServingAddress, strconv.Itoa(int(f.port)))) {
				return
			}
		}
		if path := o.Sidecar.ServingUDS; path != "" {
			if whole, err := filepath.Abs(path); err == nil { // a relative one would be taken for a host
				path = whole
			}
			yield("serving-uds", path)
		}
	}
}
