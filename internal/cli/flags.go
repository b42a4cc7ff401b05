package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/internal/version"
)

// groupKey is the annotation with the group of a flag.
const groupKey = "konnectivity/group"

// helpWidth is the column at which descriptions of flags wrap.
const helpWidth = 100

// AddFlags defines flags on cmd under a title in its help. Groups appear in the order of
// their first AddFlags, and flags in the order of their definition; flags defined
// elsewhere come last, as "Other flags".
func AddFlags(cmd *cobra.Command, title string, define func(*pflag.FlagSet)) {
	set := pflag.NewFlagSet(title, pflag.ContinueOnError)
	set.SortFlags = false
	define(set)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[groupKey] = []string{title}
	})
	cmd.Flags().SortFlags = false
	cmd.Flags().AddFlagSet(set)
	set.VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(interface{ choices() []string }); ok && len(c.choices()) > 0 {
			Choices(cmd, f.Name, c.choices()...)
		}
	})
}

// prepare sets up the root command of a program.
func prepare(root *cobra.Command) {
	root.SilenceErrors = true // Run prints them
	root.SilenceUsage = true  // an error is one line
	// Custom templates, even for the version, would link text/template. With it the
	// linker keeps methods that are never called: 1.7 MB.
	root.Version = version.Get().String()
	root.SetGlobalNormalizationFunc(dashes)
	root.SetUsageFunc(usage)
	root.CompletionOptions.DisableDefaultCmd = true // it skips roots without subcommands
	root.AddCommand(newCompletion(root), newVersion(root))
	refuseTopics(root)
}

// refuseTopics makes help of anything but a command an error. cobra shows the help of the command
// above it, and succeeds.
func refuseTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // no error: it was just added
	show := help.Run
	help.RunE = func(cmd *cobra.Command, topic []string) error {
		above, rest, _ := root.Find(topic)
		if len(rest) > 0 {
			return Usagef("unknown help topic %q for %q%s", rest[0], above.CommandPath(), similar(above, rest[0]))
		}
		show(cmd, topic)
		return nil
	}
}

// similar names the commands below cmd that an unknown one may be meant for, as the end of an
// error.
func similar(cmd *cobra.Command, name string) string {
	cmd.SuggestionsMinimumDistance = 2 // cobra's default, which only its own errors set
	if names := cmd.SuggestionsFor(name); len(names) > 0 {
		return ": did you mean " + strings.Join(names, " or ") + "?"
	}
	return ""
}

// dashes accepts underscores in flags, as in those of klog.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// usage prints the part of --help after the description.
func usage(cmd *cobra.Command) error {
	out := cmd.OutOrStderr()
	fmt.Fprintln(out, "Usage:")
	if cmd.Runnable() {
		fmt.Fprintf(out, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(out, "  %s COMMAND\n\nCommands:\n", cmd.CommandPath())
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(out, "  %-*s  %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if cmd.HasExample() {
		fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, group := range groups(cmd) {
		if group.HasAvailableFlags() {
			fmt.Fprintf(out, "\n%s:\n%s", group.Name(), group.FlagUsagesWrapped(helpWidth))
		}
	}
	return nil
}

// groups returns cmd's flags in sets that have their titles as names, in order.
func groups(cmd *cobra.Command) []*pflag.FlagSet {
	var all []*pflag.FlagSet
	add := func(title string, f *pflag.Flag) {
		i := slices.IndexFunc(all, func(g *pflag.FlagSet) bool { return g.Name() == title })
		if i < 0 {
			set := pflag.NewFlagSet(title, pflag.ContinueOnError)
			set.SortFlags = false
			i, all = len(all), append(all, set)
		}
		all[i].AddFlag(f)
	}
	var others []*pflag.Flag
	cmd.LocalFlags().SortFlags = false
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if title := f.Annotations[groupKey]; len(title) > 0 {
			add(title[0], f)
		} else {
			others = append(others, f)
		}
	})
	for _, f := range others {
		add("Other flags", f)
	}
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { add("Global flags", f) })
	return all
}

// unquote removes the backticks around the name of the value in descriptions of flags,
// which pflag's help interprets and cobra's completion does not.
func unquote(cmd *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	}
	for _, sub := range cmd.Commands() {
		unquote(sub)
	}
}

// Choices defines the values that shells complete for a flag of cmd. After a value that
// ends in a slash they add no space.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(values, func(v string) bool { return strings.HasSuffix(v, "/") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, directive)); err != nil {
		panic(err) // there is no such flag
	}
}

// newCompletion is the command that prints a completion script for a shell.
func newCompletion(root *cobra.Command) *cobra.Command {
	generate := map[string]func(io.Writer) error{
		"bash":       func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":        root.GenZshCompletion,
		"fish":       func(w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": root.GenPowerShellCompletionWithDesc,
	}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a shell script that completes commands and flags",
		Long: "Completion prints a script that completes commands and flags in your shell. The one for\n" +
			"bash needs the package bash-completion.",
		Example:   "  source <(" + root.Name() + " completion bash)",
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      cobra.MatchAll(OneArg("bash, zsh, fish or powershell"), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			return generate[args[0]](cmd.OutOrStdout())
		},
	}
}

// value is a flag whose text is parsed when it is given, so that a wrong one is
// refused like any other wrong flag.
type value[T any] struct {
	to       *T
	parse    func(string) (T, error)
	kind     string
	text     string
	accepted []string // the only values; nil for all that parse
}

// String implements pflag.Value.
func (v *value[T]) String() string { return v.text }

// Type implements pflag.Value; help shows it.
func (v *value[T]) Type() string { return v.kind }

// Set implements pflag.Value.
func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.to, v.text = parsed, text
	}
	return err
}

func (v *value[T]) choices() []string { return v.accepted }

// define defines the flag with a default, which must parse, or "" for none.
func (v *value[T]) define(set *pflag.FlagSet, name, shorthand, initial, usage string) {
	if initial != "" {
		if err := v.Set(initial); err != nil {
			panic(err) // a default that its own flag refuses
		}
	}
	set.VarP(v, name, shorthand, usage)
}

// Var defines the flag --name, whose value parse turns into *to. kind names its values in
// help. initial is the default, which must parse, or "" for none.
func Var[T any](set *pflag.FlagSet, to *T, parse func(string) (T, error), name, kind, initial, usage string) {
	(&value[T]{to: to, parse: parse, kind: kind}).define(set, name, "", initial, usage)
}

// Choice defines a flag that has one of the accepted values, which shells complete.
func Choice[T ~string](set *pflag.FlagSet, to *T, name string, initial T, usage string, accepted ...T) {
	choice(accepted, to, func(a T) T { return a }).define(set, name, "", string(initial), usage)
}

// Output defines -o and --output: plain, the default, or json, which sets *asJSON.
func Output(set *pflag.FlagSet, asJSON *bool, plain string) {
	isJSON := func(format string) bool { return format == "json" }
	choice([]string{plain, "json"}, asJSON, isJSON).define(set, "output", "o", plain, plain+" or json")
}

// choice returns a flag that sets *to to what of makes of the accepted value. Its error
// does not mention "", which may be one of them.
func choice[A ~string, T any](accepted []A, to *T, of func(A) T) *value[T] {
	v := &value[T]{to: to, kind: "string"}
	for _, a := range accepted {
		if a != "" {
			v.accepted = append(v.accepted, string(a))
		}
	}
	v.parse = func(text string) (none T, _ error) {
		if slices.Contains(accepted, A(text)) {
			return of(A(text)), nil
		}
		return none, fmt.Errorf("must be one of %s", strings.Join(v.accepted, ", "))
	}
	return v
}
