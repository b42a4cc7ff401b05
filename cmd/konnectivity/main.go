// Command konnectivity is the operator's tool of the suite.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

func main() {
	status.FollowEscapes(os.Stdout)
	os.Exit(cli.Main(newRoot()))
}

// newRoot returns the command with all subcommands, each of which has a file of its own.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "konnectivity",
		Short: "Set up, try out and inspect a konnectivity suite",
		Long: "konnectivity is the operator's tool: it creates certificates, lets you try the suite,\n" +
			"and shows what a running suite does and what is wrong with it.",
	}
	root.AddCommand(
		newBench(),
		newCerts(),
		newCheck(),
		newDial(),
		newHandoverFolder(),
		newPolicy(),
		newQuickstart(),
		newRedirect(),
		newStatus(),
		newTenants(),
	)
	return root
}
