// Command konnectivity-agent runs in the data plane: it dials the konnectivity
// servers and connects to destinations for them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpproxy"

	"konnectivity/agent"
	"konnectivity/agent/egress"
	"konnectivity/cmd/internal/program"
	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/cli"
	"konnectivity/internal/files"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/observe"
	"konnectivity/internal/observe/profiles"
	"konnectivity/internal/pki"
	"konnectivity/internal/policy"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel/connect"
	"konnectivity/tunnel/link"
)

const component = "konnectivity-agent"

func main() { os.Exit(cli.Main(newCommand())) }

func newCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   component,
		Short: "Connect a data plane to its konnectivity servers",
		Long: "Runs in the data plane, stays connected to every konnectivity server, and dials destinations for them.\n" +
			"It accepts the flags of upstream's proxy-agent.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	f.addTo(cmd)
	return cmd
}

// run starts everything, and returns when ctx has ended and the agent has
// drained, or when a part failed.
func run(ctx context.Context, f *flags) error {
	ctx, stop := agent.WatchRestart(ctx)
	defer stop()
	if err := f.validate(); err != nil {
		return err
	}
	log, err := f.logging.New(component, os.Stderr)
	if err != nil {
		return err
	}
	defer logging.End(log)
	for _, note := range f.notes() {
		log.Warn(note)
	}
	p := &process{flags: f, Base: program.New(component, log), store: agent.OpenStore(log)}
	if err := p.listen(); err != nil {
		return err
	}
	defer p.close()
	if err := p.build(); err != nil {
		return err
	}
	return p.serve(ctx)
}

// process holds the parts of a running agent.
type process struct {
	program.Base
	flags *flags

	store         *agent.Store    // nil: off
	handover      *agent.Handover // nil: off
	health, admin net.Listener    // admin is nil if it is off
	api           []net.Listener  // of the node's programs; none: it is off
	ports         []*port         // all of these
	certificates  *tlsreload.Source
	policy        *policyfile.Live // nil: no file
	agent         *agent.Agent
	id            string
	table         *admin.Table // for the admin port; nil if it is off
}

// listen opens the ports first, so that one in use is an error before anything starts. Those
// of the agent before are asked for.
func (p *process) listen() (err error) {
	if f := p.flags; f.handover != "" {
		p.handover, err = agent.OpenHandover(f.handover, f.agentID(), f.options.Servers, p.Log)
		switch {
		case errors.Is(err, fs.ErrPermission): // as SELinux has it, too: better an agent without than none
			p.handover = nil
			p.Log.WithError(err).Warn("--handover-socket: connections end with this agent")
		case err != nil:
			return fmt.Errorf("--handover-socket: %w", err)
		}
	}
	err = p.openPorts(false)
	// A rollout that starts this agent first ends the one before once this one runs, also
	// where there is no socket.
	if errors.Is(err, syscall.EADDRINUSE) && p.flags.handover != "" {
		if p.handover.TakePorts() != nil {
			p.Log.WithError(err).Warn("this agent answers there once the port is free; the agent before may have it")
		}
		err = p.openPorts(true)
	}
	if err != nil {
		p.handover.Close()
	}
	return err
}

// openPorts opens the ports, or none. wait leaves one that is in use for later.
func (p *process) openPorts(wait bool) (err error) {
	p.ports, p.api = nil, nil
	open := func(at place) net.Listener {
		if err != nil {
			return nil
		}
		var l *port
		if l, err = openPort(at, wait); err != nil {
			return nil
		}
		p.ports = append(p.ports, l)
		return l
	}
	p.health = open(p.flags.health)
	if p.flags.admin.Number != 0 {
		p.admin = open(p.flags.admin)
	}
	for _, at := range p.flags.api {
		p.api = append(p.api, open(apiPlace{at, p.Log}))
	}
	for _, l := range p.ports {
		if err == nil {
			p.handover.AddPort(l)
		} else {
			_ = l.Close()
		}
	}
	return err
}

func (p *process) close() {
	p.handover.Close()
	for _, l := range p.ports {
		_ = l.Close()
	}
}

func (p *process) build() error {
	f := p.flags
	var err error
	p.certificates, err = p.Certificates(f.files, tlsreload.Options{Name: "agent", Peer: f.peers.Peer(pki.RoleServer), Own: cli.Own(f.role())})
	if err != nil {
		return err
	}
	opts, err := p.options()
	if err != nil {
		return err
	}
	if f.countLeases {
		leases, err := p.countLeases()
		if err != nil {
			return err
		}
		opts.Leases, p.Background = leases, append(p.Background, leases.Run)
	}
	p.id = opts.ID
	if p.admin != nil {
		p.table = admin.NewTable()
		p.Observe(p.table)
	}
	if err := p.Record(p.id, f.auditLog, f.traces); err != nil {
		return err
	}
	opts.Observers = p.Observers
	if p.agent, err = agent.New(opts); err == nil {
		p.certificates.OnChange(p.agent.Retry)
		p.OnReroute(p.agent.Rerouted)
		p.policy.OnChange(p.agent.Rejudge)
	}
	return err
}

func (p *process) options() (agent.Options, error) {
	f := p.flags
	opts := f.options
	rules, err := policy.Parse(f.allow, f.deny)
	if err != nil {
		return opts, err
	}
	environment, err := p.environmentProxy()
	if err != nil {
		return opts, err
	}
	if p.policy, err = p.Policy(f.policyFile, agent.MetricsPrefix); err != nil {
		return opts, err
	}
	reach := egress.Options{Policy: rules, File: p.policy, Descriptors: admission.Descriptors(), APIServers: f.apiServers}
	if f.egressProxy {
		reach.Proxy = environment
	}
	opts.Handover, opts.Store, opts.API = p.handover, p.store, p.api
	opts.ID = cmp.Or(f.agentID(), p.handover.ID(), p.store.ID(), defaultID(os.Args))
	opts.TLS, opts.Trusted, opts.Proxy = p.certificates.Client, f.files.Trusted("--ca-cert"), environment
	opts.Budget, opts.Dialer = link.NewBudget(f.budgetMiB<<20), egress.New(reach)
	opts.Log, opts.Registerer = p.Log, p.Registry
	opts.Grace = cmp.Or(opts.Grace, -1)
	if f.tokenPath != "" {
		opts.Token = files.Token(f.tokenPath)
	}
	return opts, nil
}

// environmentProxy returns the proxy of the environment. As in upstream's agent, whose gRPC
// library does it, servers are reached through it, or without it if it does not parse.
// Destinations are reached through it only with --egress-proxy-from-environment, and then
// it must be valid.
func (p *process) environmentProxy() (func(*url.URL) (*url.URL, error), error) {
	environment := httpproxy.FromEnvironment()
	environment.HTTPSProxy = strings.TrimSpace(environment.HTTPSProxy)
	_, wrong := connect.ParseProxy(environment.HTTPSProxy)
	everywhere := httpproxy.Config{HTTPSProxy: environment.HTTPSProxy} // without NO_PROXY
	used, _ := everywhere.ProxyFunc()(&url.URL{Scheme: "https", Host: "server.example"})
	switch {
	case wrong == nil:
	case p.flags.egressProxy:
		return nil, fmt.Errorf("--egress-proxy-from-environment: HTTPS_PROXY: %w", wrong)
	case used == nil:
		p.Log.Warnf("HTTPS_PROXY of the environment: %v; it is ignored, and servers are reached without a proxy", wrong)
	default:
		p.Log.Warnf("HTTPS_PROXY of the environment: %v; servers cannot be reached through it", wrong)
	}
	return environment.ProxyFunc(), nil
}

func (p *process) countLeases() (*agent.LeaseCounter, error) {
	config, err := kubeapi.Load(p.flags.kubeconfig, "--count-server-leases")
	if err != nil {
		return nil, err
	}
	client, err := kubeapi.NewLeases(config, p.flags.leaseNamespace)
	if err != nil {
		return nil, fmt.Errorf("--count-server-leases: %w", err)
	}
	return agent.NewLeaseCounter(agent.LeaseOptions{
		Client: client, Selector: p.flags.leaseSelector,
		Log: p.Log, Registerer: p.Registry,
	})
}

// serve runs until ctx ends and the agent has drained, or a listener fails.
// Health and metrics stay up while it drains.
func (p *process) serve(ctx context.Context) error {
	health := observe.Health{Metrics: p.Registry, Checks: []observe.Check{{Name: "server-connected", Do: p.agent.Ready}}}
	parts := []func(context.Context) error{func(ctx context.Context) error { return observe.Serve(ctx, p.health, health.Handler(), p.Log) }}
	if p.admin != nil {
		parts = append(parts, func(ctx context.Context) error { return observe.Serve(ctx, p.admin, p.adminHandler(), p.Log) })
	}
	return cli.Around(ctx, p.agent.Run, p.Background, parts...)
}

func (p *process) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", observe.RedirectToPort(p.flags.health.Number))
	if p.flags.profiling {
		profiles.Mount(mux, p.flags.contention)
	}
	return admin.Handler(mux, p.adminSource())
}

// adminSource describes the agent to the admin API.
func (p *process) adminSource() admin.Source {
	return admin.Source{
		Component: component, ID: p.id, Table: p.table, Ready: p.agent.Trouble, Peers: p.agent.Servers, Audit: p.Audit.Trouble, Policy: p.policy.Trouble,
		More: func(s *admin.Status) { s.Peers[admin.RoleServer] = len(p.agent.Servers()) },
	}
}
