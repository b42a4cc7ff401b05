package auth

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"

	"konnectivity/internal/files"
	"konnectivity/server/registry"
)

// maxAllowFile bounds the allow file; it is read whole.
const maxAllowFile = 4 << 20

// Claims restricts agents to identifiers of their own: each must be a SAN of
// the agent's certificate, or be granted to it by the allow file. A cidr counts
// as a SAN only if it is a single address that is one; default-route never
// does. It may be used by any number of goroutines.
//
// The allow file has one line per grant: the common name of a certificate, or *
// for every agent, and the identifiers it may claim, as a URL query. A cidr
// grants the addresses and prefixes within it; a host may begin with "*." for
// any name under a domain. # starts a comment. The file is reread when it
// changes; if the new one is broken, the old grants stay in force.
type Claims struct {
	grants *files.Followed[map[string]registry.Identifiers] // nil: none
}

// NewClaims reads the allow file; "" means none.
func NewClaims(allowFile string, log logrus.FieldLogger) (*Claims, error) {
	if allowFile == "" {
		return OwnClaims(), nil
	}
	grants, err := files.Follow(allowFile, maxAllowFile, 0, func(text []byte) (map[string]registry.Identifiers, error) {
		grants, err := parseGrants(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", allowFile, err)
		}
		return grants, nil
	}, func(err error) {
		log.WithError(err).Error("the identifier allow file cannot be used; the previous grants stay in force")
	})
	if err != nil {
		return nil, err
	}
	return &Claims{grants}, nil
}

// OwnClaims restricts agents to what their certificates have, without an allow
// file.
func OwnClaims() *Claims { return &Claims{} }

// check returns nil if the holder of the certificate may claim ids, else a
// *Refusal that names the first one it may not.
func (c *Claims) check(state *tls.ConnectionState, ids registry.Identifiers) error {
	cert := CertOf(state)
	granted := c.grantsFor(cert)
	for _, addr := range ids.Addrs {
		if !certHasAddr(cert, addr) && !grantsPrefix(granted, netip.PrefixFrom(addr.WithZone(""), addr.BitLen())) {
			return notItsOwn("the address", addr)
		}
	}
	for _, prefix := range ids.CIDRs {
		if !(prefix.IsSingleIP() && certHasAddr(cert, prefix.Addr())) && !grantsPrefix(granted, prefix) {
			return notItsOwn("the cidr", prefix)
		}
	}
	for _, host := range ids.Hosts {
		if (cert == nil || cert.VerifyHostname(host) != nil) && !grantsHost(granted, host) {
			return notItsOwn("the host", host)
		}
	}
	if ids.DefaultRoute && !granted.DefaultRoute {
		return notItsOwn("the identifier", "default-route=true")
	}
	return nil
}

func notItsOwn(what string, claim any) error {
	return refuse(codes.PermissionDenied, "the agent may not claim %s %v: neither its certificate nor the server's allow file covers it", what, claim)
}

func certHasAddr(cert *x509.Certificate, addr netip.Addr) bool {
	return cert != nil && slices.ContainsFunc(cert.IPAddresses, func(ip net.IP) bool { return ip.Equal(addr.AsSlice()) })
}

func grantsPrefix(granted registry.Identifiers, p netip.Prefix) bool {
	isAddr := func(addr netip.Addr) bool { return p.IsSingleIP() && addr.WithZone("") == p.Addr() }
	isWithin := func(cidr netip.Prefix) bool { return cidr.Bits() <= p.Bits() && cidr.Contains(p.Addr()) }
	return slices.ContainsFunc(granted.Addrs, isAddr) || slices.ContainsFunc(granted.CIDRs, isWithin)
}

func grantsHost(granted registry.Identifiers, host string) bool {
	return slices.ContainsFunc(granted.Hosts, func(allowed string) bool {
		domain, wild := strings.CutPrefix(allowed, "*")
		return allowed == host || wild && strings.HasPrefix(domain, ".") && strings.HasSuffix(host, domain)
	})
}

// grantsFor returns what the allow file grants to a certificate's holder.
func (c *Claims) grantsFor(cert *x509.Certificate) registry.Identifiers {
	if c.grants == nil {
		return registry.Identifiers{}
	}
	grants := c.grants.Get()
	if cert == nil {
		return grants["*"]
	}
	return grow(grow(registry.Identifiers{}, grants["*"]), grants[cert.Subject.CommonName])
}

// grow returns granted with the grants of by added.
func grow(granted, by registry.Identifiers) registry.Identifiers {
	return registry.Identifiers{
		Addrs: append(granted.Addrs, by.Addrs...), Hosts: append(granted.Hosts, by.Hosts...), CIDRs: append(granted.CIDRs, by.CIDRs...),
		DefaultRoute: granted.DefaultRoute || by.DefaultRoute,
	}
}

func parseGrants(text []byte) (map[string]registry.Identifiers, error) {
	grants := make(map[string]registry.Identifiers)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, registry.MaxIdentifiersText+1024)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 {
			return nil, fmt.Errorf("line %d: want NAME IDENTIFIERS", n)
		}
		ids, err := registry.ParseGrants(words[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		grants[words[0]] = grow(grants[words[0]], ids)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return grants, nil
}
