// Package nameserver reads the name servers of resolv.conf, has a look-up ask every one of them in
// time, and ends it without one kind of addresses where that is not answered.
package nameserver

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"konnectivity/internal/files"
)

const (
	// roundTime is how long the first question to each of the servers takes at most,
	// all together. Go's resolver waits that long for a single one, so that the second
	// is asked when most look-ups are given up, and the third as a dial is.
	roundTime = 5 * time.Second

	// handshakeTime is how long a connection over TCP may take. A firewall that drops it costs
	// that much two times with each of the servers, all within the 7 s that an agent's dial has
	// for a look-up.
	handshakeTime = time.Second

	// most servers are asked (resolv.conf(5)).
	most = 3

	// MaxFile bounds resolv.conf, in bytes; the C library reads less.
	MaxFile = 64 << 10
)

// Dial is the type of net.Resolver's Dial.
type Dial = func(ctx context.Context, network, server string) (net.Conn, error)

// Patience returns dial with a bound on what a server takes: its part of roundTime, and
// handshakeTime of it for a handshake. One that answers late is asked again in the second round,
// and knows the answer by then. Once addresses of one kind are known, those of the other have
// OtherKind.
func Patience(dial Dial) Dial {
	return func(ctx context.Context, network, server string) (net.Conn, error) {
		conn, err := patience(dial, present)(ctx, network, server)
		if err != nil || ctx.Value(oneKind{}) != nil {
			return conn, err
		}
		return all.over(conn), nil
	}
}

// Resolver is a net.Resolver with Patience. Where one kind of addresses alone is wanted, its
// question has all the time there is: no address of the other kind can stand in for them.
type Resolver struct{ net.Resolver }

// New returns one that asks by dial.
func New(dial Dial) *Resolver { return &Resolver{net.Resolver{Dial: Patience(dial)}} }

// oneKind is the key of a context whose look-up asks for one kind of addresses.
type oneKind struct{}

// LookupNetIP is that of net.Resolver: network is "ip", "ip4" or "ip6".
func (r *Resolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if network != "ip" {
		ctx = context.WithValue(ctx, oneKind{}, true)
	}
	return r.Resolver.LookupNetIP(ctx, network, host)
}

func patience(dial Dial, present func() []netip.Addr) Dial {
	return func(ctx context.Context, network, server string) (net.Conn, error) {
		began, servers := time.Now(), present()
		n := len(servers)
		dialing, cancel := context.WithTimeout(ctx, handshakeTime)
		defer cancel()
		conn, err := dial(dialing, network, oneOf(servers, server))
		if err == nil && n > 1 { // the resolver sets a deadline of its own once it has it
			until := began.Add(roundTime / time.Duration(min(n, most)))
			time.AfterFunc(time.Until(until), func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		}
		return conn, err
	}
}

// oneOf returns server, or any of servers where it is none of them: a look-up keeps to the servers
// that it began with, and Go's resolver rereads resolv.conf every 5 s at most, so that for 15 s, all
// would ask servers that a new one no longer names.
func oneOf(servers []netip.Addr, server string) string {
	at, err := netip.ParseAddrPort(server)
	if err != nil || len(servers) == 0 || slices.Contains(servers, at.Addr()) {
		return server
	}
	return netip.AddrPortFrom(servers[rand.IntN(len(servers))], at.Port()).String()
}

// present are the servers that resolv.conf names now.
func present() []netip.Addr {
	text, _ := files.Read("/etc/resolv.conf", MaxFile)
	return Servers(text)
}

// Servers are those of a resolv.conf. It skips invalid lines, as Go's resolver does.
func Servers(text []byte) (all []netip.Addr) {
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "nameserver" {
			if ip, err := netip.ParseAddr(string(fields[1])); err == nil {
				all = append(all, ip)
			}
		}
	}
	return all
}
