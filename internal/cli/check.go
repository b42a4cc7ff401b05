package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"konnectivity/internal/pki"
)

// The programs check their flags and open their ports before they serve anything.
// Every error names its flag; it is a *UsageError if the command line alone shows it.

// Listen listens on the TCP address HOST:PORT of a flag.
func Listen(flag, address string) (net.Listener, error) {
	l, err := ListenTCP(address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return l, nil
}

// ListenTCP listens on the TCP address HOST:PORT.
func ListenTCP(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: tune}
	config.SetMultipathTCP(false) // connections of its listeners do not inherit what tune sets
	l, err := config.Listen(context.Background(), network(address), address)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) { // the kernel knows no IPv6, or forbids it
		l, err = config.Listen(context.Background(), "tcp", address)
	}
	if err == nil && l.Addr() == nil {
		err = errors.Join(errors.New("the kernel does not tell its own address: a sandbox may forbid getsockname"), l.Close())
	}
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // without repeating the address
		}
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return l, nil
}

// Port is a port to listen on, with the flag of its number.
type Port struct {
	Flag   string
	Host   string // address to bind to; "" is all
	Number int
	Least  int  // smallest accepted number; 0 if it turns the port off
	Unused bool // other flags turn the port off
}

// Listen opens the port.
func (p Port) Listen() (net.Listener, error) {
	return Listen(p.Flag, net.JoinHostPort(p.Host, strconv.Itoa(p.Number)))
}

// Addr returns the address to listen on, as the flags give it.
func (p Port) Addr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(p.Host), Port: p.Number} }

// CheckPorts checks that the ports are valid, and that no two are the same.
func CheckPorts(ports ...Port) error {
	for i, a := range ports {
		if a.Number == 0 && a.Least > 0 {
			return Usagef("--%s=0: it must be from %d to 65535; this port cannot be switched off", a.Flag, a.Least)
		}
		if a.Number < a.Least || a.Number > 65535 {
			return Usagef("--%s=%d: must be from %d to 65535", a.Flag, a.Number, a.Least)
		}
		for _, b := range ports[:i] {
			if a.meets(b) {
				return Usagef("--%s and --%s are both %d", b.Flag, a.Flag, a.Number)
			}
		}
	}
	return nil
}

func (p Port) meets(q Port) bool {
	return !p.Unused && !q.Unused && p.Number > 0 && p.Number == q.Number && (p.Host == q.Host || p.Host == "" || q.Host == "")
}

// Text is the value of a flag as text.
func Text(set *pflag.FlagSet, flag string) string { return set.Lookup(flag).Value.String() }

// CheckFiles checks that the files named by flags exist, but not their content.
func CheckFiles(set *pflag.FlagSet, flags ...string) error {
	for _, flag := range flags {
		path := Text(set, flag)
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		var failed *fs.PathError
		switch {
		case errors.As(err, &failed):
			return fmt.Errorf("--%s: %s: %w", flag, path, failed.Err)
		case err != nil:
			return fmt.Errorf("--%s: %w", flag, err)
		case info.IsDir():
			return fmt.Errorf("--%s: %s is a directory", flag, path)
		}
	}
	return nil
}

// FlagError returns the usage error for an invalid value of a flag; nil if err is nil.
func FlagError(flag string, err error) error {
	if err == nil {
		return nil
	}
	return Usagef("--%s: %w", flag, err)
}

// Parse stores in to the value of a flag whose text is from.
func Parse[A, T any](to *T, flag string, from A, parse func(A) (T, error)) error {
	parsed, err := parse(from)
	if err == nil {
		*to = parsed
	}
	return FlagError(flag, err)
}

// CheckValue is FlagError with the value in it, for errors that do not quote it.
func CheckValue(flag string, value any, err error) error {
	if err == nil {
		return nil
	}
	return Usagef("--%s=%v: %w", flag, value, err)
}

// AtLeast checks a number or duration.
func AtLeast[T cmp.Ordered](flag string, value, least T) error {
	if value < least {
		return Usagef("--%s=%v: must be at least %v", flag, value, least)
	}
	return nil
}

// NotNegative checks a duration for which 0 has a meaning of its own.
func NotNegative(flag string, d time.Duration) error {
	if d < 0 {
		return Usagef("--%s=%v: must not be negative", flag, d)
	}
	return nil
}

// CheckPair checks that both flags or neither have a value.
func CheckPair(set *pflag.FlagSet, a, b string) error {
	switch {
	case Text(set, a) != "" && Text(set, b) == "":
		return Usagef("--%s is given without --%s", a, b)
	case Text(set, b) != "" && Text(set, a) == "":
		return Usagef("--%s is given without --%s", b, a)
	}
	return nil
}

// CheckGiven checks that none of the flags was given an empty value, such as that of an
// unset variable: it would count as not given, and allow more than was meant.
func CheckGiven(set *pflag.FlagSet, flags ...string) error {
	for _, name := range flags {
		if text := Text(set, name); set.Changed(name) && (text == "" || text == "[]") {
			return Usagef("--%s is empty, which would be as if it were not there: give it a value, or leave it out", name)
		}
	}
	return nil
}

// CheckServerName checks --server-name, the name of a server in TLS; "" stands for the
// host that is dialed.
func CheckServerName(name string) error {
	if name == "" {
		return nil
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return Usagef("--server-name=%s: TLS asks for names, not for addresses: want a DNS name that the server's certificate has", name)
	}
	if !pki.IsDNSName(strings.TrimSuffix(name, ".")) {
		return Usagef("--server-name=%q: want a DNS name that the server's certificate has, such as cluster-a.example.com, without a port", name)
	}
	return nil
}

// CheckID checks that the id of a process fits into gRPC metadata and a log
// line.
func CheckID(flag, id string, most int) error {
	if len(id) > most || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) {
		return Usagef("--%s: an id has at most %d printable ASCII characters", flag, most)
	}
	return nil
}

// PeerFlags are a program's requirements on its peers' certificates, besides a CA.
type PeerFlags struct {
	require     bool
	trustDomain string
}

// AddTo defines the flags; peers names the peers in their help.
func (p *PeerFlags) AddTo(set *pflag.FlagSet, peers string) {
	set.BoolVar(&p.require, "require-peer-role", false, "refuse certificates of "+peers+" that have no role; certificates with a wrong role are always refused")
	set.StringVar(&p.trustDomain, "peer-trust-domain", "", "refuse certificates whose role has any other trust domain (default: every trust domain is accepted, the CA decides)")
}

// Check returns a usage error for an invalid value.
func (p *PeerFlags) Check() error {
	if p.trustDomain != "" && !pki.ValidTrustDomain(p.trustDomain) {
		return Usagef("--peer-trust-domain=%q: want lower-case letters, digits, '.', '-' and '_', such as %s", p.trustDomain, pki.DefaultTrustDomain)
	}
	return nil
}

// Peer returns the check of peers' certificates for the role want.
func (p *PeerFlags) Peer(want pki.Role) func(*x509.Certificate) error {
	return pki.RoleRule{Want: want, Require: p.require, TrustDomain: p.trustDomain}.Check
}

// Servers returns the check of the certificates of other servers, for a server: they must
// have the role in any case.
func (p *PeerFlags) Servers() func(*x509.Certificate) error {
	return pki.RoleRule{Want: pki.RoleServer, Require: true, TrustDomain: p.trustDomain}.Check
}

// Own returns the check of the program's own certificate that its peers make by default.
func Own(role pki.Role) func(*x509.Certificate) error { return pki.RoleRule{Want: role}.Check }
