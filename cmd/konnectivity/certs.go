package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/certs"
	"konnectivity/internal/cli"
	"konnectivity/internal/pki"
)

func newCerts() *cobra.Command {
	var o certs.Order
	cmd := &cobra.Command{
		Use:   "certs DIR",
		Short: "Write a CA and the certificates of server, agents and clients",
		Long: "Certs writes a CA and four certificates signed by it, with their keys, into DIR:\n" +
			"server (shown to clients), cluster (shown to agents), client (for sidecars and\n" +
			"kube-apiserver) and agent. Each has its role in a URI name, and programs refuse\n" +
			"certificates of a wrong role. Existing files are never overwritten; only their owner\n" +
			"can read the keys. Loopback and the usual service names are always included.\n" +
			"With --tenant, it makes what one more cluster of a shared server needs: a CA of its own,\n" +
			"the folder for the server's --tenants-dir (DIR/tenants/NAME), and what the cluster's\n" +
			"agents and clients are given (DIR/clusters/NAME).",
		Example: "  konnectivity certs pki --server-san=proxy.example.com --cluster-san=203.0.113.7\n" +
			"  konnectivity certs pki-2027 --from=pki   # new certificates of the same CA\n" +
			"  konnectivity certs pki --tenant=cluster-a --server-name=cluster-a.example.com",
		Args: cli.OneArg("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tenant") {
				return o.FulfilTenant(args[0], cmd.OutOrStdout())
			}
			if err := needTenant(cmd); err != nil {
				return err
			}
			return o.Fulfil(args[0], cmd.OutOrStdout())
		},
	}
	cli.AddFlags(cmd, "Certificate flags", func(f *pflag.FlagSet) {
		f.StringSliceVar(&o.ServerSANs, "server-san", nil, "additional names and addresses at which clients reach the server")
		f.StringSliceVar(&o.ClusterSANs, "cluster-san", nil, "additional names and addresses at which agents reach the server")
		certsFlags(&o, f)
	})
	cli.AddFlags(cmd, "Tenant flags", func(f *pflag.FlagSet) {
		f.StringVar(&o.Tenant.Name, "tenant", "", "make what this tenant of a shared server needs instead")
		tenantFlags(&o.Tenant, f)
	})
	for _, flag := range []string{"server-san", "cluster-san"} {
		cmd.MarkFlagsMutuallyExclusive("tenant", flag)
	}
	cmd.MarkFlagsMutuallyExclusive("from", "ca-lifetime")
	return cmd
}

// needTenant refuses the flags of tenants without --tenant.
func needTenant(cmd *cobra.Command) (err error) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	tenantFlags(new(certs.Tenant), own)
	own.VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Changed(f.Name) {
			err = cli.Usagef("--%s needs --tenant", f.Name)
		}
	})
	return err
}

// tenantFlags defines the flags that need a tenant.
func tenantFlags(t *certs.Tenant, f *pflag.FlagSet) {
	f.StringSliceVar(&t.ServerNames, "server-name", nil, "a TLS server name (SNI) by which this tenant's agents and clients, and no other tenant's, ask for the server; repeatable")
	f.BoolVar(&t.ByIdentity, "by-identity", false, "have the server tell it from other tenants of the same CA (--from) by the roles in its certificates, of the trust domain NAME unless --trust-domain gives another")
	f.IntVar(&t.Listen.AgentPort, "agent-port", 0, "a port on which the server listens for this tenant's agents alone; 0: the one for all")
	f.IntVar(&t.Listen.ClientPort, "client-port", 0, "the same for its clients")
	f.StringVar(&t.Listen.ClientSocket, "client-socket", "", "`PATH` of a unix socket on which the server listens for this tenant's clients alone, without TLS")
	f.StringVar(&t.AgentsAt, "agents-at", "", "`HOST:PORT` at which its agents reach the server (default: the first --server-name, port 8091 or --agent-port)")
	f.StringVar(&t.ClientsAt, "clients-at", "", "`HOST:PORT` at which its clients reach the server (default: the first --server-name, port 8090 or --client-port)")
	f.StringVar(&t.ServerNamespace, "server-namespace", "konnectivity", "with --kubernetes, the namespace of the shared server")
}

func certsFlags(o *certs.Order, f *pflag.FlagSet) {
	f.StringSliceVar(&o.AgentSANs, "agent-san", nil, "names and addresses that an agent may claim, with the server's --agent-identifier-policy=certificate")
	f.DurationVar(&o.Lifetime, "lifetime", pki.DefaultLifetime, "how long the certificates are valid; never longer than the CA")
	f.DurationVar(&o.CALifetime, "ca-lifetime", pki.DefaultCALifetime, "how long a new CA is valid")
	f.StringVar(&o.TrustDomain, "trust-domain", pki.DefaultTrustDomain, "trust domain of the roles in the certificates: spiffe://TRUST-DOMAIN/konnectivity/ROLE")
	f.StringVar(&o.From, "from", "", "sign with ca.crt and ca.key of this directory instead of a new CA")
	f.BoolVar(&o.Kubernetes, "kubernetes", false, "also write the secrets and config maps that hold the files, under HyperShift's names")
	f.StringVar(&o.Namespace, "namespace", "kube-system", "with --kubernetes, the namespace of the control plane")
}
