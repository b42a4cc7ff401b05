package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

func newStatus() *cobra.Command {
	var view status.View
	cmd := &cobra.Command{
		Use:   "status [ADDRESS...]",
		Short: "Show what servers, agents and sidecars do right now",
		Long: "Status asks the admin API of each ADDRESS (HOST:PORT of a server's or agent's admin\n" +
			"port, or of a sidecar's --admin-address; https://HOST:PORT of a server's with\n" +
			"--admin-cert) and shows agents, links, connections with stalled ones first, rates, round\n" +
			"trips and the latest failures. Without an ADDRESS it asks the usual ports of this\n" +
			"machine, " + status.UsualAdmin[0] + " and " + status.UsualAdmin[1] + ".\n\n" +
			"To follow one connection across its hops, give the addresses of all hops, and the\n" +
			"connection's id with --filter. The exit status is 1 if an ADDRESS does not answer.\n\n" +
			"With --service it asks all servers of a set, and shows them in one picture: each server,\n" +
			"and of the tenants that they share those with problems, the worst first, and why.",
		Example: "  konnectivity status --watch\n" +
			"  konnectivity status 127.0.0.1:8095 127.0.0.1:8096 --filter 4bf92f3577b34da6\n" +
			"  konnectivity status --service https://konnectivity-server --token-file admin-token\n" +
			"  kubectl port-forward deploy/konnectivity-server 8095   # and in another terminal: konnectivity status 127.0.0.1:8095",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkStatus(&view, args); err != nil {
				return err
			}
			view.Exactly = cmd.Flags().Changed("limit")
			return view.Show(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	cli.AddFlags(cmd, "Status flags", func(f *pflag.FlagSet) {
		f.BoolVarP(&view.Watch, "watch", "w", false, "keep updating the output in place, until Ctrl-C")
		f.DurationVar(&view.Interval, "interval", time.Second, "how often --watch updates; at least 200ms")
		f.StringSliceVar(&view.Services, "service", nil, "one picture of all servers that HOST has addresses of: `[https://]HOST[:PORT]`, by default port 8095; repeatable")
		addLogin(f, &view.Login)
		cli.Output(f, &view.JSON, "table")
		f.StringVar(&view.Filter, "filter", "", "only connections, peers and failures with this text in an id, host or address; with --service only tenants with it in name, condition or reason")
		f.IntVar(&view.Limit, "limit", 10, "maximum number of peers, connections and failures to show for each process, or of servers and tenants with --service; at most 1000")
	})
	return cmd
}

func checkStatus(view *status.View, addresses []string) error {
	switch {
	case view.Limit < 0 || view.Limit > 1000:
		return cli.Usagef("--limit %d: want 0 to 1000", view.Limit)
	case view.Interval < 200*time.Millisecond:
		return cli.Usagef("--interval %v: want at least 200ms", view.Interval)
	}
	if len(view.Services) > 0 && len(addresses) > 0 {
		return cli.Usagef("%q: want either addresses or --service", addresses[0])
	}
	for _, a := range addresses {
		if !isAdmin(a) {
			return cli.Usagef("%q: want HOST:PORT or https://HOST:PORT of an admin port", a)
		}
	}
	return nil
}
