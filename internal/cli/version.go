package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/version"
)

// newVersion is the command version, which prints JSON too.
func newVersion(root *cobra.Command) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and what built it",
		Example: "  " + root.Name() + " version -o json",
		Args:    NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(version.Get())
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", root.DisplayName(), root.Version)
			return err
		},
	}
	AddFlags(cmd, "Version flags", func(f *pflag.FlagSet) { Output(f, &asJSON, "text") })
	return cmd
}
