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
	const text, asJSON = "text", "json"
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and what built it",
		Example: "  " + root.Name() + " version -o json",
		Args:    NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := CheckChoice(Value{"output", output}, text, asJSON); err != nil {
				return err
			}
			if output == asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(version.Get())
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", root.DisplayName(), root.Version)
			return err
		},
	}
	AddFlags(cmd, "Version flags", func(f *pflag.FlagSet) {
		f.StringVarP(&output, "output", "o", text, "text or json")
	})
	Choices(cmd, "output", text, asJSON)
	return cmd
}
