package certs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
)

// The folders of tenants' files, below that of the order. --tenants-dir reads the first.
const (
	tenantsFolder  = "tenants"
	clustersFolder = "clusters"
)

// serverFile is the manifest for the shared server of `certs --tenant --kubernetes`.
const serverFile = "kubernetes-server.yaml"

// The usual ports of a server.
const (
	clientsPort = "8090"
	agentsPort  = "8091"
)

// Tenant is one of the clusters that a server serves.
type Tenant struct {
	Name            string
	ServerNames     []string // TLS server names of its agents and clients for the server
	ServerNamespace string   // with Kubernetes, of the shared server

	// ByIdentity makes the server recognise the tenant by the roles in its
	// certificates, in a trust domain of its own, where tenants share a CA.
	ByIdentity bool

	// AgentsAt and ClientsAt are the server's HOST:PORT for the tenant's agents and
	// clients; "" is the first server name with the default port.
	AgentsAt, ClientsAt string

	// Listen has ports and a socket of the server for this tenant alone; zero values
	// are the shared ports.
	Listen tenant.ListenSettings
}

// tenantFiles are the files of a tenant.
type tenantFiles struct {
	folder, cluster       string // for the server, and for the cluster
	ca                    *pki.CA
	server, client, agent certificate
	spec                  []byte // tenant.yaml
	reader                []byte // token that shows the tenant on the admin port
}

// FulfilTenant makes a tenant: DIR/tenants/NAME for the server, which appears there
// complete, and DIR/clusters/NAME with the CA and the files of agents and clients.
func (o *Order) FulfilTenant(dir string, out io.Writer) error {
	f, err := o.planTenant(dir)
	if err != nil {
		return err
	}
	if err := refuseToOverwrite(f.folder, f.cluster); err != nil {
		return err
	}
	if f.ca, err = o.authority(); err != nil {
		return err
	}
	if err := cmp.Or(o.sign(f.ca, &f.server), o.sign(f.ca, &f.client), o.sign(f.ca, &f.agent)); err != nil {
		return err
	}
	if err := o.conflict(f); err != nil {
		return err
	}
	if err := o.writeTenant(f); err != nil {
		_ = os.Remove(f.cluster) // which is empty now, and was not there before
		return err
	}
	return o.summarizeTenant(out, f)
}

// conflict is an error if a tenant beside the new one has what that claims: the server would
// refuse the new one.
func (o *Order) conflict(f *tenantFiles) error {
	made, err := tenant.LoadSecret(o.Tenant.Name, f.served())
	if err != nil {
		return err
	}
	for _, other := range tenant.Beside(f.folder, o.Tenant.Name) {
		if err := made.Conflict(other); err != nil {
			return fmt.Errorf("%s: %w; nothing was written", flagOf(err), errors.Unwrap(err))
		}
	}
	return nil
}

// planTenant checks the order and returns the certificates to sign.
func (o *Order) planTenant(dir string) (*tenantFiles, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	t := &o.Tenant
	if err := tenant.CheckName(t.Name); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	if err := checkNamespace("server-namespace", t.ServerNamespace); err != nil {
		return nil, err
	}
	if len(t.ServerNames) == 0 { // settings go without, if ports are the tenant's own
		return nil, cli.Usagef("--server-name: the certificate of the server needs a name, and agents and clients ask for it")
	}
	told, err := o.identities()
	if err != nil {
		return nil, err
	}
	spec, err := yaml.Marshal(tenant.Settings{ServerNames: t.ServerNames, ByCertificate: t.ByIdentity, Identities: told, Listen: t.Listen})
	if err != nil {
		return nil, err
	}
	parsed, err := tenant.ParseSettings(spec)
	if err != nil {
		return nil, cli.Usagef("%s: %w", flagOf(err), errors.Unwrap(err))
	}
	t.ServerNames = parsed.ServerNames
	for _, at := range []struct {
		flag, port string
		own        int
		to         *string
	}{{"agents-at", agentsPort, t.Listen.AgentPort, &t.AgentsAt}, {"clients-at", clientsPort, t.Listen.ClientPort, &t.ClientsAt}} {
		if at.own > 0 {
			at.port = strconv.Itoa(at.own)
		}
		if *at.to == "" {
			*at.to = net.JoinHostPort(t.ServerNames[0], at.port)
		}
		if _, _, err := tunnel.SplitAddress(*at.to); err != nil {
			return nil, cli.Usagef("--%s=%s: want HOST:PORT", at.flag, *at.to)
		}
	}
	f := &tenantFiles{
		folder: filepath.Join(dir, tenantsFolder, t.Name), cluster: filepath.Join(dir, clustersFolder, t.Name), spec: spec, reader: admin.NewToken(),
		server: o.certificate("server", pki.Leaf{CommonName: "konnectivity-server", Server: true, DNS: t.ServerNames}, pki.RoleServer),
		client: o.certificate("client", pki.Leaf{CommonName: "konnectivity-client", Client: true}, pki.RoleClient),
		agent:  o.certificate("agent", pki.Leaf{CommonName: "konnectivity-agent", Client: true}, pki.RoleAgent),
	}
	return f, addSANs(&f.agent.leaf, "agent-san", o.AgentSANs)
}

// flagOf is the flag behind a wrong field of tenant.yaml.
func flagOf(err error) string {
	switch field, _ := errors.AsType[*tenant.FieldError](err); {
	case field != nil && field.File != tenant.SettingsFile:
		return "--from"
	case field != nil && strings.HasPrefix(field.Field, "identities."):
		return "--trust-domain"
	case field != nil && field.Field == "listen.agentPort":
		return "--agent-port"
	case field != nil && field.Field == "listen.clientPort":
		return "--client-port"
	case field != nil && field.Field == "listen.clientSocket":
		return "--client-socket"
	default:
		return "--server-name"
	}
}

// identities returns the identities in tenant.yaml, and sets the trust domain of the
// certificates accordingly.
func (o *Order) identities() (list tenant.IdentitiesSettings, err error) {
	if !o.Tenant.ByIdentity {
		return list, nil
	}
	if o.From == "" {
		return list, cli.Usagef("--by-identity needs --from, the directory of the CA that the tenants share")
	}
	if o.TrustDomain == pki.DefaultTrustDomain {
		o.TrustDomain = o.Tenant.Name
	}
	of := func(role pki.Role) []string {
		return []string{pki.Holder{Role: role, TrustDomain: o.TrustDomain}.URI().String()}
	}
	return tenant.IdentitiesSettings{Agents: of(pki.RoleAgent), Clients: of(pki.RoleClient)}, nil
}

// certificate returns one that is still to be signed.
func (o *Order) certificate(name string, leaf pki.Leaf, role pki.Role) certificate {
	leaf.Organization, leaf.Lifetime = organization, o.Lifetime
	leaf.Holder = pki.Holder{Role: role, TrustDomain: o.TrustDomain}
	return certificate{name: name, leaf: leaf}
}

// served returns the files of the tenant's folder.
func (f *tenantFiles) served() map[string][]byte {
	return map[string][]byte{
		tenant.AgentsCAFile: f.ca.CertPEM, tenant.ClientsCAFile: f.ca.CertPEM,
		tenant.CertFile: f.server.pair.CertPEM, tenant.KeyFile: f.server.pair.KeyPEM, tenant.SettingsFile: f.spec,
		tenant.ReaderFile: f.reader,
	}
}

// writeFolder writes the tenant's folder under another name and renames it, so that a
// server that watches the parent sees it complete.
func (f *tenantFiles) writeFolder() error {
	parent := filepath.Dir(f.folder)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	making, err := os.MkdirTemp(parent, ".making-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(making) }() // gone where all went well
	for name, data := range f.served() {
		write := pki.WriteCert
		if name == tenant.KeyFile || name == tenant.ReaderFile {
			write = pki.WriteKey
		}
		if err := write(filepath.Join(making, name), data); err != nil {
			return err
		}
	}
	if err := os.Chmod(making, 0o755); err != nil { // as Kubernetes mounts secrets; key and token are their owner's alone
		return err
	}
	return os.Rename(making, f.folder)
}

// writeTenant writes both folders, or none.
func (o *Order) writeTenant(f *tenantFiles) error {
	cluster, err := o.clusterFiles(f)
	if err != nil {
		return err
	}
	if err := writeAll(f.cluster, cluster); err != nil {
		return err
	}
	err = f.writeFolder()
	if err != nil {
		takeBack(cluster)
	}
	return err
}

// clusterFiles returns the CA and the files of the cluster's own programs.
func (o *Order) clusterFiles(f *tenantFiles) ([]file, error) {
	all, err := (&Order{From: o.From}).files(f.cluster, f.ca, []certificate{f.client, f.agent})
	if err != nil {
		return nil, err
	}
	all = append(all, file{filepath.Join(f.cluster, tenant.ReaderFile), f.reader, pki.WriteKey})
	if !o.Kubernetes {
		return all, nil
	}
	served := secret(o.Tenant.ServerNamespace, "tenant-"+o.Tenant.Name, kubeapi.SecretOpaque, f.served())
	served.Labels = map[string]string{tenant.SecretLabel: o.Tenant.Name}
	objects, err := objectsFiles(f.cluster, map[string][]any{
		serverFile:       {served},
		controlPlaneFile: {tlsSecret(o.Namespace, f.ca, f.client), caConfigMap(o.Namespace, f.ca)},
		dataPlaneFile:    agentObjects(f.ca, f.agent),
	})
	return append(all, objects...), err
}

// summarizeTenant prints the flags of the server and of the cluster's programs.
func (o *Order) summarizeTenant(out io.Writer, f *tenantFiles) error {
	t := &o.Tenant
	day := func(at time.Time) string { return at.UTC().Format(time.DateOnly) }
	path := func(name string) string { return filepath.Join(f.cluster, name) }
	agentHost, agentPort, _ := net.SplitHostPort(t.AgentsAt)
	clientHost, clientPort, _ := net.SplitHostPort(t.ClientsAt)
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	say("The tenant %s is reached as %s. Its certificates are valid until %s, their CA until %s.\n", t.Name, strings.Join(t.ServerNames, ", "),
		day(f.server.pair.TLS().Leaf.NotAfter), day(f.ca.Certificate().NotAfter))
	say("The shared server reads %s, below what its --tenants-dir names:\n", f.folder)
	say("  konnectivity-server --tenants-dir=%s", filepath.Dir(f.folder))
	say("\nAgents of the cluster:\n")
	say("  konnectivity-agent --proxy-server-host=%s --proxy-server-port=%s%s \\\n    --ca-cert=%s --agent-cert=%s --agent-key=%s",
		agentHost, agentPort, t.askFor(agentHost), path("ca.crt"), path("agent.crt"), path("agent.key"))
	say("\nSidecars of its control plane:\n")
	say("  konnectivity-socks5-proxy --konnectivity-hostname=%s --konnectivity-port=%s%s \\\n    --ca-cert-path=%s --tls-cert-path=%s --tls-key-path=%s",
		clientHost, clientPort, t.askFor(clientHost), path("ca.crt"), path("client.crt"), path("client.key"))
	say("\nIts kube-apiserver, in the file of --egress-selector-config-file. %s:\n\n%s", t.reach(), t.egressSelection(path))
	say("\nWhoever is to see this tenant on the server's admin port, and nothing else there:\n")
	say("  konnectivity status SERVER:8095 --token-file=%s", path(tenant.ReaderFile))
	say("\nThe same where the server has --admin-cert, with the CA of that certificate:\n")
	say("  konnectivity status https://SERVER:8095 --ca-cert-path=ADMIN-CA --token-file=%s", path(tenant.ReaderFile))
	if o.Kubernetes {
		say("\nkubectl apply -f %s  # the shared server's cluster", path(serverFile))
		say("kubectl apply -f %s  # the control plane's namespace", path(controlPlaneFile))
		say("kubectl apply -f %s  # the cluster where the agents run", path(dataPlaneFile))
	}
	if o.From == "" {
		say("\nKeep %s safe: whoever has it can pass for the server, an agent or a client of this tenant.", path("ca.key"))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// askFor is the flag of peers that dial a host that is not one of the server names.
func (t *Tenant) askFor(host string) string {
	if slices.Contains(t.ServerNames, tunnel.CanonicalHost(host)) {
		return ""
	}
	return " --server-name=" + t.ServerNames[0]
}

// reach says what the kube-apiserver needs to reach the server.
func (t *Tenant) reach() string {
	if t.Listen.ClientSocket != "" {
		return "It has to see the server's socket\nat the same path"
	}
	return "It asks for the host of the url,\nso that name has to lead to the server from there"
}

// egressSelection is the part of an EgressSelectorConfiguration for the cluster.
func (t *Tenant) egressSelection(path func(string) string) string {
	if socket := t.Listen.ClientSocket; socket != "" {
		return fmt.Sprintf(`  - name: cluster
    connection:
      proxyProtocol: HTTPConnect
      transport:
        uds:
          udsName: %s`, socket)
	}
	host, port, _ := net.SplitHostPort(t.ClientsAt)
	if t.askFor(host) != "" {
		host = t.ServerNames[0]
	}
	return fmt.Sprintf(`  - name: cluster
    connection:
      proxyProtocol: HTTPConnect
      transport:
        tcp:
          url: https://%s
          tlsConfig:
            caBundle: %s
            clientCert: %s
            clientKey: %s`, net.JoinHostPort(host, port), path("ca.crt"), path("client.crt"), path("client.key"))
}
