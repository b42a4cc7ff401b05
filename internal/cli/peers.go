package cli

import (
	"crypto/x509"

	"github.com/spf13/pflag"

	"konnectivity/internal/pki"
)

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

// Own returns the check of the program's own certificate that its peers make by default.
func Own(role pki.Role) func(*x509.Certificate) error { return pki.RoleRule{Want: role}.Check }
