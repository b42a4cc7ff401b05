package main

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters"
	"konnectivity/adapters/resolve"
	"konnectivity/cmd/internal/sidecar"
	"konnectivity/internal/admin"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
)

// startAdapter makes the sidecars' own way out; stop ends it.
func (c *checker) startAdapter(ctx context.Context) (stop func(), ok bool) {
	c.group = "destination"
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	source, err := tlsreload.New(c.opts.sidecar.Files, tlsreload.Options{Name: "check", Log: quiet})
	if err != nil {
		return nil, c.fail("flags", err.Error(), "")
	}
	if c.adapter, err = adapters.New(c.opts.sidecar.Adapter(source, quiet)); err != nil {
		return nil, c.fail("flags", err.Error(), "A sidecar would not start with them either.")
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.adapter.Run(ctx) })
	return func() { cancel(); running.Wait() }, true
}

// sources are the steps of the resolver chain in words.
var sources = map[resolve.Source][2]string{
	resolve.FromService: {"Services of the hosted cluster", "Check --kubeconfig, and that the hosted cluster's API can be reached from here."},
	resolve.FromGuest:   {"DNS of the hosted cluster", "Check that the Service of --guest-dns-service exists and that its pods run; it is asked by TCP on port 53 through the tunnel."},
	resolve.FromSystem:  {"DNS of this cluster", "Check /etc/resolv.conf and that DNS server."},
}

// checkName asks every step of the SOCKS5 front's resolver chain.
func (c *checker) checkName(ctx context.Context) bool {
	host, _, _ := tunnel.SplitAddress(c.target)
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	lookups := c.adapter.Lookups(ctx, c.opts.sidecar.Resolve, host)
	if len(lookups) == 0 {
		c.ok("name", host+" is left to the agent to look up")
		return true
	}
	if path := c.opts.sidecar.Hosted.Kubeconfig; path != "" {
		if _, ok := c.read("kubeconfig", path); !ok {
			return false
		}
	}
	found, silent := false, false
	for _, l := range lookups {
		words := sources[l.Source]
		ms := float64(l.Took.Microseconds()) / 1000
		switch {
		case l.Err == nil:
			found = true
			c.add(finding{Step: words[0], Result: resultOK, Cause: host + " is " + addresses(l.Answer.Addrs), Milliseconds: ms})
		case resolve.IsNotFound(l.Err):
			c.add(finding{Step: words[0], Result: resultOK, Cause: host + " is not known there", Milliseconds: ms})
		default:
			silent = true
			c.fail(words[0], "not available: "+reasonOf(l.Err), words[1])
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

// reasonOf is the cause in words that a client may see, with what lies behind.
func reasonOf(err error) string {
	dial := tunnel.AsDialError("", err)
	if dial.Err != nil {
		if inner := tunnel.AsDialError("", dial.Err); inner.Failure != tunnel.FailInternal && inner.Failure != dial.Failure {
			return dial.Text() + " (" + inner.Text() + ")"
		}
	}
	return dial.Text()
}

// checkDestination dials as each front of a sidecar with these flags would.
func (c *checker) checkDestination(ctx context.Context) {
	c.try(ctx, "connection as by SOCKS5", c.adapter.SOCKS5())
	if c.opts.sidecar.Proxies.HTTPSProxy != "" {
		c.try(ctx, "connection as by HTTP CONNECT", c.adapter.Connect())
	}
}

// try dials the target once and closes it.
func (c *checker) try(ctx context.Context, step string, d tunnel.Dialer) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.timeout)
	defer cancel()
	id := tunnel.NewID()
	trace := new(adapters.Trace)
	start := time.Now()
	conn, err := d.Dial(adapters.WithTrace(tunnel.WithID(ctx, id), trace), "tcp", c.target)
	if err != nil {
		dial := tunnel.AsDialError(c.target, err)
		hint := admin.Hint(dial.Failure)
		if dial.Failure == tunnel.FailAuth {
			hint = "The customer's proxy refuses the user and password in --https-proxy, or wants some."
		}
		cause := dial.Text()
		if words := dial.Failure.String(); !strings.Contains(cause, words) {
			cause = words + ": " + cause
		}
		c.fail(step, cause, hint)
		return
	}
	to := ""
	if remote := conn.RemoteAddr(); c.linked && trace.Route != "" && remote != nil && remote.String() != "" && remote.String() != c.target {
		to = " at " + remote.String()
	}
	_ = conn.Close()
	c.timed(step, c.target+to+routes[trace.Route], start)
}

var routes = map[adapters.Route]string{
	adapters.RouteDirect: ", past the tunnel", adapters.RouteFallback: ", past the tunnel, which is deemed down",
	adapters.RouteCustomer: ", by the customer's proxy",
}

// checkFronts goes through sidecars that listen where the flags say.
func (c *checker) checkFronts(ctx context.Context) {
	s := &c.opts.sidecar
	for _, port := range []uint16{s.ServingPort, s.SecondPort, c.opts.socks5Port} {
		if port == 0 {
			continue
		}
		at := net.JoinHostPort(s.ServingAddress, strconv.Itoa(int(port)))
		front, ok := frontAt(ctx, at)
		switch {
		case !ok:
			c.add(finding{Step: "sidecar at " + at, Result: resultSkipped, Cause: "nobody listens there"})
		case front == "":
			c.add(finding{Step: "sidecar at " + at, Result: resultSkipped, Cause: "what listens there is neither a SOCKS5 nor an HTTP proxy"})
		case front == sidecar.SOCKS5:
			c.try(ctx, "SOCKS5 sidecar at "+at, socksDialer(at))
		default:
			c.try(ctx, "HTTP sidecar at "+at, connectDialer(at))
		}
	}
}

// frontTime bounds the look at what a port of this machine speaks.
const frontTime = time.Second

// frontAt asks what listens in SOCKS5 (RFC 1928 §3); what does not answer in
// kind may be HTTP. On a port that both share, SOCKS5 answers.
func frontAt(ctx context.Context, at string) (front sidecar.Front, listens bool) {
	ask := func(what string, answer []byte) bool {
		ctx, cancel := context.WithTimeout(ctx, frontTime)
		defer cancel()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
		if err != nil {
			return false
		}
		defer conn.Close()
		listens = true
		_ = conn.SetDeadline(time.Now().Add(frontTime))
		if _, err := io.WriteString(conn, what); err != nil {
			return false
		}
		got := make([]byte, len(answer))
		_, err = io.ReadFull(conn, got)
		return err == nil && string(got) == string(answer)
	}
	switch {
	case ask("\x05\x02\x00\x02", []byte{5}):
		return sidecar.SOCKS5, true
	case ask("OPTIONS * HTTP/1.1\r\nHost: check\r\nConnection: close\r\n\r\n", []byte("HTTP/1.")):
		return sidecar.HTTP, true
	default:
		return "", listens
	}
}
