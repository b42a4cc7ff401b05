package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/certs"
	"konnectivity/cmd/konnectivity/internal/diagnose"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

func newTenants() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenants",
		Short: "List, check and make the tenants of a server that many clusters share",
		Long: "A server with --tenants-dir or --tenants-namespace serves many clusters, each a tenant: a\n" +
			"folder or a Secret with the tenant's name, which says who are its agents and its clients.",
	}
	cmd.AddCommand(newTenantsList(), newTenantsCheck(), newTenantsMake())
	return cmd
}

func newTenantsList() *cobra.Command {
	var v status.Tenants
	var order string
	cmd := &cobra.Command{
		Use:   "list [ADDRESS]",
		Short: "List a server's tenants, failing ones first",
		Long: "List asks the admin API of the server at ADDRESS (HOST:PORT, by default " + status.UsualAdmin[0] + ")\n" +
			"and shows each tenant's names, agents, connections and traffic, and what is wrong with it.\n" +
			"The exit status is 1 if the server does not answer; JSON then has why, as its error.",
		Example: "  konnectivity tenants list --sort=traffic --limit=20\n" +
			"  konnectivity tenants list 127.0.0.1:8095 --filter=broken",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address := strings.Join(append(args, status.UsualAdmin[0])[:1], "")
			if !isAdmin(address) {
				return cli.Usagef("%q: want HOST:PORT or https://HOST:PORT of a server's admin port", address)
			}
			if v.Limit < 0 {
				return cli.Usagef("--limit %d: want 0, for all, or more", v.Limit)
			}
			v.Sort = map[string]string{"state": "-state", "traffic": "-rate"}[order]
			return v.Show(cmd.Context(), cmd.OutOrStdout(), address)
		},
	}
	cli.AddFlags(cmd, "List flags", func(f *pflag.FlagSet) {
		cli.Choice(f, &order, "sort", "state", "state (failing first), traffic (most bytes a second first) or name", "state", "traffic", "name")
		f.StringVar(&v.Filter, "filter", "", "only tenants with this text in name, state, error or server names")
		f.IntVar(&v.Limit, "limit", 0, "how many to show at most; 0: all")
		addLogin(f, &v.Login)
		cli.Output(f, &v.JSON, "table")
	})
	return cmd
}

func newTenantsMake() *cobra.Command {
	var o certs.Order
	var dir string
	cmd := &cobra.Command{
		Use:   "make NAME",
		Short: "Make the folder and the certificates of one more tenant",
		Long: "Make is `konnectivity certs --tenant`: it makes a CA of the tenant's own, the folder that\n" +
			"the server reads, which appears there all at once, and what the cluster's agents and\n" +
			"clients are given, and prints the flags of each. Nothing is ever overwritten.",
		Example: "  konnectivity tenants make cluster-a --dir=pki --server-name=cluster-a.example.com\n" +
			"  konnectivity tenants make cluster-a --dir=new --server-name=cluster-a.example.com --from=pki/clusters/cluster-a",
		Args: cli.OneArg("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Tenant.Name = args[0]
			return o.FulfilTenant(dir, cmd.OutOrStdout())
		},
	}
	cli.AddFlags(cmd, "Tenant flags", func(f *pflag.FlagSet) {
		f.StringVar(&dir, "dir", ".", "write below this directory: tenants/NAME for the server, clusters/NAME for the cluster")
		tenantFlags(&o.Tenant, f)
	})
	cli.AddFlags(cmd, "Certificate flags", func(f *pflag.FlagSet) { certsFlags(&o, f) })
	cmd.MarkFlagsMutuallyExclusive("from", "ca-lifetime")
	return cmd
}

func newTenantsCheck() *cobra.Command {
	var asJSON bool
	var server diagnose.Server
	cmd := &cobra.Command{
		Use:   "check DIR/NAME|FILE|-",
		Short: "Find out what is wrong with a tenant's folder or Secret",
		Long: "Check reads the folder as the server does, and says of its settings, certificates, names\n" +
			"and modes whether they are right, or what to do; with --server-admin also whether the\n" +
			"server has it so, and whether agents are connected. Of a FILE, or of standard input (-), it\n" +
			"checks all Secrets of tenants that are in it, as YAML or JSON. It changes nothing. The exit\n" +
			"status is 1 if something is wrong; warnings do not count.",
		Example: "  konnectivity tenants check /etc/konnectivity/tenants/cluster-a --server-admin=127.0.0.1:8095\n" +
			"  kubectl get secrets -n konnectivity-tenants -l konnectivity-tenant -o yaml | konnectivity tenants check -",
		Args: cli.OneArg("DIR/NAME, FILE or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkAdmin("server-admin", server.Admin); err != nil {
				return err
			}
			findings, err := checkTenants(cmd, args[0], server)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return printFindings(cmd.OutOrStdout(), findings, asJSON)
		},
	}
	cli.AddFlags(cmd, "Check flags", func(f *pflag.FlagSet) {
		f.StringVar(&server.Admin, "server-admin", "", "`HOST:PORT` of the server's admin port, or https://HOST:PORT, to see what it has of the tenant")
		addLogin(f, &server.Login)
		cli.Output(f, &asJSON, "text")
	})
	return cmd
}

// checkTenants checks the folder at path, or the Secrets in a file or standard input.
func checkTenants(cmd *cobra.Command, path string, server diagnose.Server) ([]diagnose.Finding, error) {
	if path == "-" {
		return diagnose.TenantSecrets(cmd.Context(), cmd.InOrStdin(), server, time.Now())
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return diagnose.Tenant(cmd.Context(), path, server, time.Now()), nil
	}
	manifest, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = manifest.Close() }()
	return diagnose.TenantSecrets(cmd.Context(), manifest, server, time.Now())
}

// printFindings prints findings. Its error is errChecksFailed if a step failed.
func printFindings(out io.Writer, findings []diagnose.Finding, asJSON bool) error {
	if asJSON {
		if err := cli.PrintJSON(out, findings); err != nil {
			return err
		}
	} else {
		var text bytes.Buffer
		diagnose.Print(&text, findings, status.PaintIf(status.IsTerminal(out)), status.SizeOf(out).Columns)
		if _, err := out.Write(text.Bytes()); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(findings, func(f diagnose.Finding) bool { return f.Result == diagnose.Failed }) {
		return errChecksFailed
	}
	return nil
}
