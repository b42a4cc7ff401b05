// Command konnectivity is the operator's tool of the suite.
package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

func main() {
	status.FollowEscapes(os.Stdout)
	root := newRoot()
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-konnectivity") {
		asPlugin(root)
	}
	os.Exit(cli.Main(root))
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
		newSigner(),
		newStatus(),
		newTenants(),
	)
	return root
}

// asPlugin has help and errors name the program as users call a kubectl plugin.
func asPlugin(root *cobra.Command) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl konnectivity"}
	var rename func(*cobra.Command)
	rename = func(cmd *cobra.Command) {
		cmd.Example = ownName.ReplaceAllString(cmd.Example, "${1}kubectl konnectivity ")
		for _, sub := range cmd.Commands() {
			rename(sub)
		}
	}
	rename(root)
}

// ownName is this program as an example calls it.
var ownName = regexp.MustCompile(`(^|[\s('])konnectivity `)
