package cli

import (
	"encoding/json"
	"fmt"
	"io"

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
				return PrintJSON(cmd.OutOrStdout(), version.Get())
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", root.DisplayName(), root.Version)
			return err
		},
	}
	AddFlags(cmd, "Version flags", func(f *pflag.FlagSet) { Output(f, &asJSON, "text") })
	return cmd
}

// PrintJSON prints v as indented JSON.
func PrintJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
