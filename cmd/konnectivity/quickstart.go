package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"konnectivity/cmd/konnectivity/internal/demo"
	"konnectivity/cmd/konnectivity/internal/screen"
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

// errChecks makes the exit status 1; the table has said why.
var errChecks = errors.New("not every path works")

func (o *quickstartOptions) run(ctx context.Context, out io.Writer) error {
	dir, err := demo.Scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := demo.New(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx) }()

	checks := d.Check(ctx)
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
	for _, c := range checks {
		if c.Error != "" && o.once {
			return errChecks
		}
	}
	return nil
}

func (o *quickstartOptions) print(out io.Writer, d *demo.Demo, checks []demo.Check) error {
	if o.json {
		return demo.PrintJSON(out, checks)
	}
	var text bytes.Buffer
	demo.PrintTable(&text, checks, screen.IsTerminal(out))
	if !o.once { // nothing of it would be there to try
		demo.PrintTries(&text, checks, screen.IsTerminal(out))
		fmt.Fprintf(&text, "\nWatch it:\n\n  %s\n  %s status --watch %s\n", d.Page(), os.Args[0], d.Ports.Admin.Addr())
		fmt.Fprintln(&text, "\nServing until Ctrl-C.")
	}
	_, err := out.Write(text.Bytes())
	return err
}
