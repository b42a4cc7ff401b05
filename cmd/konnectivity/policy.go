package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
	"konnectivity/internal/files"
	"konnectivity/internal/policyfile"
	"konnectivity/tunnel"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check a policy file, and explain what it decides",
	}
	cmd.AddCommand(newPolicyCheck(), newPolicyExplain())
	return cmd
}

func newPolicyCheck() *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Read a policy file and run its tests",
		Long:    "Check reads a policy file as --policy-file of a server and an agent does, and runs its tests.\nIt exits with 1 if they would refuse it.",
		Example: "  konnectivity policy check policy.yaml",
		Args:    cli.OneArg("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := readPolicy(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is good\n", args[0])
			return err
		},
	}
}

// explainOptions are the flags of `konnectivity policy explain`.
type explainOptions struct {
	as     []string
	tenant string
}

func newPolicyExplain() *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain FILE HOST:PORT",
		Short: "Say whether a client may reach a destination, and which rule decides",
		Long: "Explain says what a server with this policy file answers to a client that asks for a\n" +
			"destination. Of a name it says which rules the agent holds the name's address to.\n" +
			"It exits with 1 if the destination is denied.",
		Example: "  konnectivity policy explain --as=cn:prometheus policy.yaml 10.1.2.3:9100",
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(args, cmd.OutOrStdout()) },
	}
	cli.AddFlags(cmd, "Explain flags", func(f *pflag.FlagSet) {
		f.StringSliceVar(&o.as, "as", nil, "`NAME` that the client has proved, such as cn:prometheus; repeatable (default: a client that is not known)")
		f.StringVar(&o.tenant, "tenant", "", "tenant of the client (default: the server's own cluster)")
	})
	return cmd
}

func (o *explainOptions) run(args []string, out io.Writer) error {
	if len(args) != 2 {
		return cli.Usagef("want FILE and HOST:PORT")
	}
	who := tunnel.NewIdentity(o.as...)
	if who == "" && len(o.as) > 0 {
		return cli.Usagef("--as=%q: want names such as %s", strings.Join(o.as, ","), "cn:prometheus")
	}
	f, err := readPolicy(args[0])
	if err != nil {
		return err
	}
	switch d := f.Explain(who, o.tenant, args[1]); {
	case d.Bad != nil:
		return cli.Usagef("%q: %s", args[1], tunnel.AsDialError("", d.Bad).Text())
	case d.Denied != nil:
		return fmt.Errorf("denied: %s", strings.TrimPrefix(d.Denied.Error(), "denied "))
	case d.Depends != "":
		_, err = fmt.Fprintf(out, "the agent decides, by the address that it finds for the name: a line with - denies, and if there are lines with +, one of them has to match:\n%s", d.Depends)
	case d.Rule != "":
		_, err = fmt.Fprintf(out, "allowed by rule %q\n", d.Rule)
	default:
		_, err = fmt.Fprintln(out, "allowed: no rule denies it, and the file has no rule with action allow, so all else is allowed")
	}
	return err
}

func readPolicy(path string) (*policyfile.File, error) {
	data, err := files.Read(path, policyfile.MaxSize)
	if err != nil {
		return nil, err
	}
	f, err := policyfile.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
