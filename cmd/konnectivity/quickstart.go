package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/cli"
)

// quickstartOptions are the flags of `konnectivity quickstart`.
type quickstartOptions struct {
	once, json bool
}

func newQuickstart() *cobra.Command {
	var o quickstartOptions
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Run the whole suite in one process on loopback and check every path",
		Long: "Quickstart runs server, agent, both sidecars and a demo target in this process, on free\n" +
			"loopback ports with certificates of their own. It sends a real request over each path,\n" +
			"prints commands to try and the address of the server's status page, and serves until\n" +
			"Ctrl-C. Certificates and a socket are in a folder under TMPDIR, or under /dev/shm or the\n" +
			"working directory if there is none, and are removed at the end.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	cli.AddFlags(cmd, "Quickstart flags", func(f *pflag.FlagSet) {
		f.BoolVar(&o.once, "once", false, "exit after the checks; the exit status says whether all passed")
		f.BoolVar(&o.json, "json", false, "print the checks as JSON")
	})
	return cmd
}

// errChecks makes the exit status 1; the table names the paths that failed.
var errChecks = errors.New("not every path works")

func (o *quickstartOptions) run(ctx context.Context, out io.Writer) error {
	dir, err := demoFolder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := newDemo(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.serve(ctx) }()

	checks := d.check(ctx)
	if err := o.print(out, d, checks); err != nil {
		cancel()
		return errors.Join(err, <-ended)
	}
	if !o.once && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case err := <-ended:
			return err
		}
	}
	cancel()
	if err := <-ended; err != nil {
		return err
	}
	if o.once && slices.ContainsFunc(checks, func(c pathCheck) bool { return c.Error != "" }) {
		return errChecks
	}
	return nil
}

func (o *quickstartOptions) print(out io.Writer, d *demo, checks []pathCheck) error {
	if o.json {
		return cli.PrintJSON(out, checks)
	}
	var text bytes.Buffer
	paint := status.PaintIf(status.IsTerminal(out))
	printChecks(&text, checks, paint)
	if !o.once { // with --once nothing stays to be tried
		printTries(&text, checks, paint)
		admin := d.ports.admin.Addr()
		fmt.Fprintf(&text, "\nWatch it:\n\n  http://%s/\n  %s status --watch %s\n\nServing until Ctrl-C.\n", admin, os.Args[0], admin)
	}
	_, err := out.Write(text.Bytes())
	return err
}

// printChecks prints a line for each path, then the errors.
func printChecks(out io.Writer, checks []pathCheck, c status.Paint) {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, check := range checks {
		mark := c.Green + "ok" + c.Off
		if check.Error != "" {
			mark = c.Red + "failed" + c.Off
		}
		fmt.Fprintf(tw, "%s\t%.1f ms\t%s\n", mark, check.Milliseconds, check.Path)
	}
	_ = tw.Flush()
	for _, check := range checks {
		if check.Error != "" {
			fmt.Fprintf(out, "\n%s: %s\n", check.Path, check.Error)
		}
	}
}

// printTries prints a command for each path, to run while the demo serves.
func printTries(out io.Writer, checks []pathCheck, c status.Paint) {
	fmt.Fprintln(out, "\nTry it:")
	for _, check := range checks {
		if check.Try != "" {
			fmt.Fprintf(out, "\n  %s# %s%s\n  %s\n", c.Dim, check.Path, c.Off, check.Try)
		}
	}
}
