package certs

import (
	"cmp"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"konnectivity/internal/cli"
	"konnectivity/internal/files"
	"konnectivity/internal/pki"
)

// organization is that of HyperShift's konnectivity certificates.
const organization = "kubernetes"

// Order is a PKI to make, for Fulfil, or the part of a tenant, for FulfilTenant.
type Order struct {
	ServerSANs, ClusterSANs, AgentSANs []string // names and addresses beside the usual ones
	Lifetime, CALifetime               time.Duration

	From        string // folder of the CA to sign with; "" makes a new one
	Kubernetes  bool   // also write them as secrets and config maps
	Namespace   string // of the control plane
	TrustDomain string

	Tenant Tenant // what FulfilTenant makes
}

// certificate is written as NAME.crt and NAME.key.
type certificate struct {
	name string
	leaf pki.Leaf
	pair pki.Pair
}

// Fulfil checks everything, then signs everything, then writes everything, so that
// neither a mistake nor a full disk leaves half of a PKI behind.
func (o *Order) Fulfil(dir string, out io.Writer) error {
	certs, err := o.plan()
	if err != nil {
		return err
	}
	ca, err := o.authority()
	if err != nil {
		return err
	}
	for i := range certs {
		if err := o.sign(ca, &certs[i]); err != nil {
			return err
		}
	}
	files, err := o.files(dir, ca, certs)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := refuseToOverwrite(f.path); err != nil {
			return err
		}
	}
	if err := writeAll(dir, files); err != nil {
		return err
	}
	return o.summarize(out, dir, ca, certs)
}

// check checks the flags that all orders have.
func (o *Order) check() error {
	if o.Lifetime <= 0 || o.CALifetime <= 0 {
		return cli.Usagef("--lifetime and --ca-lifetime must be positive")
	}
	if err := checkNamespace("namespace", o.Namespace); err != nil {
		return err
	}
	if !pki.ValidTrustDomain(o.TrustDomain) {
		return cli.Usagef("--trust-domain=%q: want lower-case letters, digits, '.', '-' and '_'", o.TrustDomain)
	}
	return nil
}

// checkNamespace checks the name of a Kubernetes namespace.
func checkNamespace(flag, name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return cli.Usagef("--%s=%s is not a Kubernetes namespace: want lower-case letters, digits and '-'", flag, name)
	}
	return nil
}

// plan returns the certificates to sign.
func (o *Order) plan() ([]certificate, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	loopback := []string{"localhost", "127.0.0.1", "::1"}
	certs := []certificate{
		o.certificate("server", pki.Leaf{CommonName: "konnectivity-server-local", Server: true}, pki.RoleServer),
		o.certificate("cluster", pki.Leaf{CommonName: "konnectivity-server", Server: true, Client: true}, pki.RoleServer),
		o.certificate("client", pki.Leaf{CommonName: "konnectivity-client", Client: true}, pki.RoleClient),
		o.certificate("agent", pki.Leaf{CommonName: "konnectivity-agent", Client: true}, pki.RoleAgent),
	}
	return certs, cmp.Or(
		addSANs(&certs[0].leaf, "server-san", o.serviceNames("konnectivity-server-local"), loopback, o.ServerSANs),
		addSANs(&certs[1].leaf, "cluster-san", o.serviceNames("konnectivity-server"), loopback, o.ClusterSANs),
		addSANs(&certs[3].leaf, "agent-san", o.AgentSANs),
	)
}

// serviceNames are the DNS names of a Service in the control plane.
func (o *Order) serviceNames(service string) []string {
	return []string{service, service + "." + o.Namespace + ".svc", service + "." + o.Namespace + ".svc.cluster.local"}
}

// addSANs adds DNS names and addresses, each once. flag is named by its error.
func addSANs(leaf *pki.Leaf, flag string, lists ...[]string) error {
	for _, name := range slices.Concat(lists...) {
		ip := net.ParseIP(name)
		switch {
		case ip == nil && !pki.IsDNSName(strings.TrimPrefix(name, "*.")):
			return cli.Usagef("--%s: %q is neither a DNS name nor an IP address", flag, name)
		case ip == nil && !slices.ContainsFunc(leaf.DNS, func(other string) bool { return strings.EqualFold(name, other) }):
			leaf.DNS = append(leaf.DNS, name)
		case ip != nil && !slices.ContainsFunc(leaf.IPs, ip.Equal):
			leaf.IPs = append(leaf.IPs, ip)
		}
	}
	return nil
}

// refuseToOverwrite fails if one of the paths exists.
func refuseToOverwrite(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists already and nothing was written; choose another directory, or remove it first", path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// maxCommonName is the longest that a certificate may have (RFC 5280 §A.1,
// ub-common-name).
const maxCommonName = 64

// authorityName is the common name of a new CA. That of a tenant contains the tenant's
// name. A random suffix tells CAs apart in messages about an unknown CA.
func (o *Order) authorityName() string {
	name := "konnectivity-signer"
	if o.Tenant.Name != "" {
		name = "konnectivity-tenant-" + o.Tenant.Name
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	which := fmt.Sprintf("@%x", b)
	return name[:min(len(name), maxCommonName-len(which))] + which
}

// maxCAFile bounds the file of a CA's certificate or key, in bytes.
const maxCAFile = 1 << 20

// authority makes the CA, or reads that of --from.
func (o *Order) authority() (*pki.CA, error) {
	if o.From == "" {
		return pki.NewCAFor(o.authorityName(), o.CALifetime)
	}
	cert, err := files.Read(filepath.Join(o.From, "ca.crt"), maxCAFile)
	if err != nil {
		return nil, err
	}
	key, err := files.Read(filepath.Join(o.From, "ca.key"), maxCAFile)
	if err != nil {
		return nil, err
	}
	return pki.ParseCA(cert, key)
}

// sign issues a certificate, and checks that peers who trust the CA accept it: the CA
// may have expired, or be limited to other names.
func (o *Order) sign(ca *pki.CA, c *certificate) (err error) {
	if c.pair, err = ca.Issue(c.leaf); err != nil {
		return err
	}
	leaf := c.pair.TLS().Leaf
	_, err = leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: leaf.ExtKeyUsage})
	switch {
	case err == nil:
		return nil
	case o.From == "":
		return fmt.Errorf("nobody would accept %s.crt, and nothing was written: %w; give a longer --lifetime and --ca-lifetime", c.name, err)
	default:
		return fmt.Errorf("nobody would accept %s.crt if %s signed it, and nothing was written: %w; make a new CA, without --from", c.name, filepath.Join(o.From, "ca.crt"), err)
	}
}

// files returns the files to write, in this order.
func (o *Order) files(dir string, ca *pki.CA, certs []certificate) ([]file, error) {
	path := func(name string) string { return filepath.Join(dir, name) }
	all := []file{{path("ca.crt"), ca.CertPEM, pki.WriteCert}}
	if o.From == "" {
		all = append(all, file{path("ca.key"), ca.KeyPEM, pki.WriteKey})
	}
	for _, c := range certs {
		all = append(all, file{path(c.name + ".crt"), c.pair.CertPEM, pki.WriteCert}, file{path(c.name + ".key"), c.pair.KeyPEM, pki.WriteKey})
	}
	if !o.Kubernetes {
		return all, nil
	}
	objects, err := kubernetesFiles(dir, o.Namespace, ca, certs)
	return append(all, objects...), err
}

// summarize prints which flag each file is for.
func (o *Order) summarize(out io.Writer, dir string, ca *pki.CA, files []certificate) error {
	day := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
	path := func(name string) string { return filepath.Join(dir, name) }
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "Certificates are in %s, valid until %s; their CA until %s.\n\n",
		dir, day(files[0].pair.TLS().Leaf.NotAfter), day(ca.Certificate().NotAfter))
	row := func(program string, flags ...string) {
		for i := 0; i < len(flags); i += 2 {
			fmt.Fprintf(w, "%s\t--%s=%s\n", program, flags[i], path(flags[i+1]))
			program = ""
		}
	}
	row("konnectivity-server", "server-ca-cert", "ca.crt", "server-cert", "server.crt", "server-key", "server.key",
		"cluster-ca-cert", "ca.crt", "cluster-cert", "cluster.crt", "cluster-key", "cluster.key")
	row("konnectivity-agent", "ca-cert", "ca.crt", "agent-cert", "agent.crt", "agent-key", "agent.key")
	row("both sidecars", "ca-cert-path", "ca.crt", "tls-cert-path", "client.crt", "tls-key-path", "client.key")
	for _, f := range files[:2] {
		names := f.leaf.DNS
		for _, ip := range f.leaf.IPs {
			names = append(names, ip.String())
		}
		fmt.Fprintf(w, "\n%s.crt is valid for %s\n", f.name, strings.Join(names, ", "))
	}
	fmt.Fprint(w, "\nRoles, none of which is accepted for another:\n")
	for _, f := range files {
		fmt.Fprintf(w, "%s.crt\t%s\n", f.name, f.leaf.Holder.URI())
	}
	if o.Kubernetes {
		fmt.Fprintf(w, "\nkubectl apply -f %s\t# the control plane's namespace\n", path(controlPlaneFile))
		fmt.Fprintf(w, "kubectl apply -f %s\t# the cluster where agents run\n", path(dataPlaneFile))
	}
	if o.From == "" {
		fmt.Fprintf(w, "\nKeep %s safe: whoever has it can pass for any server, client or agent.\n", path("ca.key"))
	}
	return w.Flush()
}
