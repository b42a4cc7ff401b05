package main

import (
	"io"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

func TestFlagsAreDocumented(t *testing.T) {
	shared := map[string][]string{
		"konnectivity check":        {"docs/sidecars.md#Flags"},
		"konnectivity tenants make": {"docs/flags.md#konnectivity certs"},
	}
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.HasLocalFlags() && cmd.HasParent() { // the root has those of cobra alone
			testutil.CheckDocumentedFlags(t, cmd.Flags(), "docs/flags.md#"+path, shared[path]...)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no help", path, f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	root := newRoot()
	root.SetOut(io.Discard)
	_ = cli.Run(root, []string{"version"}, io.Discard, nil) // adds the commands that all programs have
	check(root)
}
