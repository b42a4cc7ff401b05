// Command konnectivity-server runs beside the control plane: clients ask it for
// destinations, and it reaches them through the agents that are connected.
package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/labels"

	"konnectivity/cmd/internal/program"
	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/policy"
	"konnectivity/internal/resources"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/internal/version"
	"konnectivity/server"
	"konnectivity/server/auth"
	"konnectivity/server/lease"
	"konnectivity/server/tenant"
	"konnectivity/tunnel/link"
)

const component = "konnectivity-server"

// unbounded is the timeout for --backend-dial-timeout=0.
const unbounded = time.Duration(math.MaxInt64 / 2)

// tenantsWait bounds the wait for tenants' Secrets at the start. Until then the server accepts no connection.
const tenantsWait = 2 * time.Second

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   component,
		Short: "Serve clients destinations that only agents can reach",
		Long: "Runs beside the control plane. Clients (kube-apiserver, the sidecars, curl) request destinations by HTTP CONNECT,\n" +
			"gRPC or native links, and the server reaches them through the agents connected to it.\n" +
			"It accepts the flags of upstream's proxy-server.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	f.addTo(cmd)
	return cmd
}

// run starts everything, and returns when ctx has ended and the server has
// drained, or when a part failed.
func run(ctx context.Context, f *flags) error {
	if err := f.validate(); err != nil {
		return err
	}
	log, err := f.logging.New(component, os.Stderr)
	if err != nil {
		return err
	}
	defer logging.End(log)
	p := &process{flags: f, Base: program.New(component, log)}
	srv, err := p.build(ctx)
	if err != nil {
		p.Close()
		return err
	}
	for _, note := range f.notes() {
		log.Warn(note)
	}
	log.WithFields(logrus.Fields{"id": p.options.ID, "version": version.Get().Version}).Info("serving")
	return srv.Run(ctx)
}

// process holds the parts of a server.
type process struct {
	program.Base
	flags   *flags
	options server.Options
	sources []*tlsreload.Source // of all ports
}

// build reads every file and opens every port, so that an error comes before anything is
// served. ctx bounds the wait for tenants' Secrets.
func (p *process) build(ctx context.Context) (*server.Server, error) {
	tenants := func() error { return p.tenants(ctx) }
	for _, step := range []func() error{
		p.settings, p.agentAuth, p.clientAuth, p.leases,
		p.listenClients, p.listenAgents, p.listenServers, p.listenOthers, p.record, tenants,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	p.options.Observers, p.options.Background = p.Observers, p.Background
	srv, err := server.New(p.options)
	if err == nil {
		for _, s := range p.sources {
			s.OnChange(srv.TrustChanged)
		}
	}
	return srv, err
}

// settings completes the options that flags set.
func (p *process) settings() (err error) {
	f, o := p.flags, &p.options
	*o = f.options
	if o.Policy, err = policy.Parse(f.allow, f.deny); err != nil {
		return err
	}
	if o.PolicyFile, err = p.Policy(f.policyFile, server.MetricsPrefix); err != nil {
		return err
	}
	o.ID = cmp.Or(f.serverID(), uuid.NewString())
	o.NoConnect, o.NoGRPC = f.mode == modeGRPC, f.mode == modeConnect
	o.NoLink, o.AgentsNeedLink = f.link == link.Off, f.link == link.Require
	o.Settle, o.Budget, o.AgentMemory = server.DefaultSettle, link.NewBudget(f.budgetMiB<<20), resources.MemoryLimit()/2
	o.Log, o.Registry = p.Log, p.Registry
	o.Grace = cmp.Or(o.Grace, -1)
	o.DialTimeout = cmp.Or(o.DialTimeout, unbounded)
	return nil
}

// agentAuth sets how agents are authenticated besides TLS.
func (p *process) agentAuth() error {
	f := p.flags
	p.options.OwnIDs = f.idPolicy == tenant.NamesOfCertificate
	if f.identifierPolicy == tenant.NamesOfCertificate {
		claims, err := auth.NewClaims(f.identifierFile, p.Log)
		if err != nil {
			return fmt.Errorf("--agent-identifier-allow-file: %w", err)
		}
		p.options.Claims = claims
	}
	if !f.tokenAuth() {
		return nil
	}
	config, err := kubeapi.Load(f.kubeconfig, "authentication of agents by token")
	if err != nil {
		return err
	}
	tokens := f.tokens
	tokens.Accounts = []auth.Account{f.agentAccount}
	p.options.Tokens = &tokens
	return reviewAt(config, &tokens)
}

// clientAuth sets how clients are authenticated that have no certificate, and whether an API
// says what clients may reach.
func (p *process) clientAuth() error {
	f := p.flags
	if len(f.clientTokens.Accounts) == 0 && !f.clientReview {
		return nil
	}
	config, err := kubeapi.LoadFlag("client-kubeconfig", f.clientKubeconfig, "--client-service-accounts or --client-access-review")
	if err != nil {
		return err
	}
	if f.clientReview {
		if p.options.AccessReviews, err = kubeapi.NewSubjectAccessReviews(config); err != nil {
			return fmt.Errorf("--client-kubeconfig: %w", err)
		}
	}
	if len(f.clientTokens.Accounts) == 0 {
		return nil
	}
	tokens := f.clientTokens
	tokens.Clients, tokens.PerSecond, tokens.Burst = true, f.tokens.PerSecond, f.tokens.Burst
	p.options.ClientTokens = &tokens
	return reviewAt(config, &tokens)
}

// reviewAt has tokens reviewed by an API.
func reviewAt(config *kubeapi.Config, tokens *auth.TokensConfig) (err error) {
	if tokens.SigningKeys, err = kubeapi.NewSigningKeys(config); err == nil {
		tokens.Reviews, err = kubeapi.NewTokenReviews(config)
	}
	return err
}

func (p *process) leases() error {
	f := p.flags
	if !f.leases {
		return nil
	}
	config, err := kubeapi.Load(f.kubeconfig, "--enable-lease-controller")
	if err != nil {
		return err
	}
	config.Pace = rate.NewLimiter(rate.Limit(cmp.Or(f.tokens.PerSecond, 5)), cmp.Or(f.tokens.Burst, 10)) // the defaults are client-go's
	leases, err := kubeapi.NewLeases(config, f.leaseNamespace)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	set, err := labels.ConvertSelectorToLabelsMap(f.leaseLabel)
	if err != nil {
		return fmt.Errorf("--lease-label: %w", err)
	}
	p.options.Leases = &lease.Config{Leases: leases, Labels: set}
	if f.advertised.IsValid() {
		p.options.Leases.Peer = netip.AddrPortFrom(f.advertised, uint16(f.peerPort.Number))
	}
	return nil
}

// record opens the audit log, and the way to the collector of spans.
func (p *process) record() error {
	err := p.Record(p.options.ID, p.flags.auditLog, p.flags.traces)
	p.options.Audit = p.Audit.Trouble
	return err
}

// tenants opens the tenants: clusters beside that of the flags.
func (p *process) tenants(ctx context.Context) (err error) {
	f := p.flags
	switch {
	case f.tenantsDir != "":
		if p.options.Tenants, err = tenant.Open(f.tenantsDir, p.Log); err != nil {
			return fmt.Errorf("--tenants-dir: %w", err)
		}
	case f.tenantsNamespace != "":
		if p.options.Tenants, err = p.tenantSecrets(ctx); err != nil {
			return err
		}
	}
	p.options.TenantTokens, p.options.TenantListener = p.tenantTokens, p.tenantListener
	return nil
}

// tenantSecrets waits for the first list of Secrets: peers of tenants connect as soon as
// a port is open.
func (p *process) tenantSecrets(ctx context.Context) (*tenant.Dir, error) {
	f := p.flags
	config, err := kubeapi.Load(f.kubeconfig, "--tenants-namespace")
	if err != nil {
		return nil, err
	}
	secrets, err := kubeapi.NewSecrets(config, f.tenantsNamespace)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	mirror := kubeapi.SecretMirror{Mirror: kubeapi.NewMirror(secrets, f.tenantsSelector, "")}
	ctx, cancel := context.WithTimeout(ctx, tenantsWait)
	defer cancel()
	_ = mirror.List(ctx) // tenant.Dir reports the error too
	p.Background = append(p.Background, mirror.Run)
	return tenant.OpenSecrets(mirror, p.Log), nil
}

// tenantTokens configures the review of a tenant's tokens by its own API. An error is
// reported to each agent with a token.
func (p *process) tenantTokens(t *tenant.Tokens) *auth.TokensConfig {
	f := p.flags
	cfg := &auth.TokensConfig{
		Accounts: []auth.Account{{Namespace: t.Namespace, Name: t.ServiceAccount}}, Audience: t.Audience,
		PerSecond: f.tokens.PerSecond, Burst: f.tokens.Burst,
	}
	config, err := t.API.Config()
	if err == nil {
		err = reviewAt(config, cfg)
	}
	if err != nil {
		cfg.Reviews, cfg.SigningKeys = auth.NoReviews{Err: err}, nil
	}
	return cfg
}

// tenantListener opens a port or socket of one tenant, with the settings of the shared one.
func (p *process) tenantListener(at tenant.Address) (l server.Listener, err error) {
	f := p.flags
	if at.Socket != "" {
		l.Listener, err = unixsocket.Listen(at.Socket, unixsocket.Options{Replace: f.deleteUDS, Log: p.Log})
		return l, err
	}
	like, host := p.options.Agents[0], f.agentPort.Host
	if !at.Agents {
		like, host = p.options.Clients[0], f.clientPort.Host
	}
	if like.TLS == nil {
		return l, errors.New("the server has no --server-cert, and so no port for clients")
	}
	like.Listener, err = cli.ListenTCP(net.JoinHostPort(host, strconv.Itoa(at.Port)))
	return like, err
}

func (p *process) listenClients() error {
	f := p.flags
	if f.clientTCP() {
		l, _, err := p.secure("server", f.server, f.peers.Peer(pki.RoleClient), f.clientPort)
		if err != nil {
			return err
		}
		p.options.Clients = append(p.options.Clients, l)
	}
	if f.uds != "" {
		l, err := p.Opened(unixsocket.Listen(f.uds, unixsocket.Options{Replace: f.deleteUDS, Log: p.Log}))
		switch {
		case errors.Is(err, unixsocket.ErrStale):
			return fmt.Errorf("--uds-name: %w or set --delete-existing-uds-file", err)
		case err != nil:
			return fmt.Errorf("--uds-name: %w", err)
		}
		p.options.Clients = append(p.options.Clients, server.Listener{Listener: l})
	}
	return nil
}

func (p *process) listenAgents() error {
	f := p.flags
	l, _, err := p.secure("cluster", f.cluster, f.peers.Peer(pki.RoleAgent), f.agentPort)
	if err != nil {
		return err
	}
	l.Proxies = f.networks
	p.options.Agents = []server.Listener{l}
	return nil
}

// listenServers listens for other servers, where there are any.
func (p *process) listenServers() error {
	f := p.flags
	if !f.hasPeers() {
		return nil
	}
	l, tls, err := p.secure("peer", f.peer, f.peers.Servers(), f.peerPort)
	if err != nil {
		return err
	}
	f.peering.Listener, f.peering.TLS, f.peering.ByLeases = l, tls.Client, f.advertised.IsValid()
	p.options.Peering = &f.peering
	return nil
}

func (p *process) listenOthers() (err error) {
	f := p.flags
	if f.healthPort.Number > 0 {
		if p.options.Health, err = p.Opened(f.healthPort.Listen()); err != nil {
			return err
		}
	}
	if f.adminToken != "" {
		token, err := admin.OpenTokenFile(f.adminToken, p.Log)
		if err != nil {
			return fmt.Errorf("--admin-token-file: %w", err)
		}
		p.options.AdminToken = token.Get
	}
	if f.adminPort.Number == 0 {
		return nil
	}
	if f.admin.Cert != "" {
		tls, err := p.source("admin", f.admin, f.peers.Peer(pki.RoleClient))
		if err != nil {
			return err
		}
		p.options.AdminTLS = tls.ServerFor
		if f.admin.CA != "" {
			p.options.AdminTrusts = tls.Trusts
		}
	}
	p.options.Admin, err = p.Opened(f.adminPort.Listen())
	return err
}

// secure opens a port, by certificates of source. Without a CA, its peers need none.
func (p *process) secure(
	name string, files tlsreload.Files, judge func(*x509.Certificate) error, port cli.Port,
) (l server.Listener, tls *tlsreload.Source, err error) {
	if tls, err = p.source(name, files, judge); err != nil {
		return l, nil, err
	}
	l.TLS = tls.ServerFor
	if files.CA != "" {
		l.Recheck = tls.Recheck
	}
	l.Listener, err = p.Opened(port.Listen())
	return l, tls, err
}

// source loads the certificates of a port whose peers' certificates judge accepts. They
// are reloaded while the server runs.
func (p *process) source(name string, files tlsreload.Files, judge func(*x509.Certificate) error) (*tlsreload.Source, error) {
	options := p.flags.tls
	options.Bare = name == "server" && len(p.flags.clientTokens.Accounts) > 0
	options.Name, options.Peer, options.Own = name, judge, cli.Own(pki.RoleServer)
	options.Interval = time.Second // a revoked peer is disconnected within 2 s
	s, err := p.Certificates(files, options)
	p.sources = append(p.sources, s)
	return s, err
}
